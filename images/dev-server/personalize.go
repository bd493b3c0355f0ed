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

	"gpudev/devserver/internal/personalization"
)

// settle runs the personalization from standard input and reports progress on standard output. The server starts it.
func settle(arguments []string) error {
	flags := flag.NewFlagSet("settle", flag.ContinueOnError)
	home := flags.String("home", "/home/"+username, "the user's home")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	var options personalization.Options
	if err := json.NewDecoder(os.Stdin).Decode(&options); err != nil {
		return fmt.Errorf("reading standard input: %w", err)
	}
	reports := json.NewEncoder(os.Stdout)
	personalization.Run(options, *home, func(report personalization.Report) { _ = reports.Encode(report) })
	return nil
}

// settled prints the result of the personalization.
func settled(arguments []string) error {
	flags := flag.NewFlagSet("settled", flag.ContinueOnError)
	port := flags.Int("port", usualPort, "the SSH port of the server")
	within := flags.Duration("within", 0*time.Second, "how long to wait for the end")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	report, err := personalization.Ask(*port, *within)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(report)
}

// readSetup reads the personalization except the variables.
func readSetup(config string) (personalization.Options, error) {
	var options personalization.Options
	var failures []error
	for name, to := range map[string]*string{"dotfiles": &options.Dotfiles, "startup_script": &options.Script} {
		text, err := os.ReadFile(filepath.Join(config, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			failures = append(failures, err)
		}
		*to = string(text)
	}
	return options, errors.Join(failures...)
}
