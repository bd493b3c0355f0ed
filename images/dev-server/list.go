package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"

	"gpudev/devserver/internal/listing"
)

const (
	// homeListed begins the line in the log that has a listing. The control plane looks for it.
	homeListed    = "home.listed "
	mostEntries   = 1000
	listingTime   = 5 * time.Second
	listingMargin = time.Second
)

// list tells what is in the home. Where a look blocks (a mount that does not answer), it ends all the same.
func list(arguments []string) error {
	flags := flag.NewFlagSet("list", flag.ContinueOnError)
	home := flags.String("home", "/home/"+username, "the folder to look through")
	limits := listing.Limits{}
	flags.IntVar(&limits.Entries, "entries", mostEntries, "how many names are told, those nearest to the top")
	flags.DurationVar(&limits.Within, "within", listingTime, "what cannot be looked at in this time is left out")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	contents, err := listHome(*home, limits)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(contents)
}

func listHome(home string, limits listing.Limits) (listing.Contents, error) {
	type outcome struct {
		contents listing.Contents
		err      error
	}
	looked := make(chan outcome, 1)
	go func() {
		contents, err := listing.Of(home, limits)
		looked <- outcome{contents, err}
	}()
	select {
	case found := <-looked:
		return found.contents, found.err
	case <-time.After(limits.Within + listingMargin):
		return listing.Contents{}, fmt.Errorf("%s does not answer", home)
	}
}

// logHome writes what is in the home to the log, in one line: nobody can ask any more when we have ended.
func logHome(home string) error {
	contents, err := listHome(home, listing.Limits{Entries: mostEntries, Within: listingTime})
	if err != nil {
		return err
	}
	line, err := json.Marshal(contents)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(os.Stdout, "%s%s\n", homeListed, line)
	return err
}
