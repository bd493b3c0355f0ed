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
	// homeListed is the prefix of the log line with the listing, which the control plane looks for.
	homeListed    = "home.listed "
	mostEntries   = 1000
	listingTime   = 5 * time.Second
	listingMargin = time.Second
)

// list prints the contents of the home. It ends even if reading blocks (a mount that does not answer).
func list(arguments []string) error {
	flags := flag.NewFlagSet("list", flag.ContinueOnError)
	home := flags.String("home", "/home/"+username, "the folder to list")
	limits := listing.Limits{}
	flags.IntVar(&limits.Entries, "entries", mostEntries, "maximum number of names, nearest to the top first")
	flags.DurationVar(&limits.Within, "within", listingTime, "time limit; what cannot be read in it is left out")
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

// logHome writes the contents of the home to the log, in one line, because nobody can ask after the end.
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
