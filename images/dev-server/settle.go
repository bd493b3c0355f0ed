package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"gpudev/devserver/internal/settling"
)

// settle carries out what is on standard input and says on standard output how far it is. The server runs it.
func settle(arguments []string) error {
	flags := flag.NewFlagSet("settle", flag.ContinueOnError)
	home := flags.String("home", "/home/"+username, "the user's home")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	var wish settling.Wish
	if err := json.NewDecoder(os.Stdin).Decode(&wish); err != nil {
		return fmt.Errorf("reading what is wanted: %w", err)
	}
	reports := json.NewEncoder(os.Stdout)
	settling.Run(wish, *home, func(report settling.Report) { _ = reports.Encode(report) })
	return nil
}

// settled tells what became of it.
func settled(arguments []string) error {
	flags := flag.NewFlagSet("settled", flag.ContinueOnError)
	port := flags.Int("port", usualPort, "the SSH port of the server to ask")
	within := flags.Duration("within", 0*time.Second, "how long to wait for its end")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	report, err := settling.Ask(*port, *within)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(report)
}

// readSetup: what the owner brings beside variables.
func readSetup(config string) (settling.Wish, error) {
	var wish settling.Wish
	var failures []error
	for name, to := range map[string]*string{"dotfiles": &wish.Dotfiles, "startup_script": &wish.Script} {
		text, err := os.ReadFile(filepath.Join(config, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			failures = append(failures, err)
		}
		*to = string(text)
	}
	return wish, errors.Join(failures...)
}
