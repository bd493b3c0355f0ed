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
	type outcome struct {
		contents listing.Contents
		err      error
	}
	looked := make(chan outcome, 1)
	go func() {
		contents, err := listing.Of(*home, limits)
		looked <- outcome{contents, err}
	}()
	select {
	case found := <-looked:
		if found.err != nil {
			return found.err
		}
		return json.NewEncoder(os.Stdout).Encode(found.contents)
	case <-time.After(limits.Within + listingMargin):
		return fmt.Errorf("%s does not answer", *home)
	}
}
