package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// install copies this program atomically.
func install(arguments []string) error {
	flags := flag.NewFlagSet("install", flag.ContinueOnError)
	to := flags.String("to", "", "the folder to install into; created if it is missing")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if *to == "" {
		return errors.New("--to is missing: the folder to install into")
	}
	if err := os.MkdirAll(*to, 0o755); err != nil {
		return err
	}
	source, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer source.Close()
	copied, err := os.CreateTemp(*to, ".installing-*")
	if err != nil {
		return err
	}
	_, err = io.Copy(copied, source)
	err = errors.Join(err, copied.Chmod(0o755), copied.Sync(), copied.Close())
	target := filepath.Join(*to, programName)
	if err == nil {
		err = os.Rename(copied.Name(), target)
	}
	if err != nil {
		_ = os.Remove(copied.Name())
		return fmt.Errorf("installing %s: %w", target, err)
	}
	fmt.Println(target)
	return nil
}
