package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"gpudev/devserver/internal/interior"
	"gpudev/devserver/internal/jupyter"
	"gpudev/devserver/internal/server"
)

// adjust passes on what is on standard input, and says how it is then.
func adjust(arguments []string) error {
	flags := flag.NewFlagSet("adjust", flag.ContinueOnError)
	port := flags.Int("port", usualPort, "the SSH port of the server to adjust")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	var wish interior.Wish
	if err := json.NewDecoder(os.Stdin).Decode(&wish); err != nil {
		return fmt.Errorf("reading what is wanted: %w", err)
	}
	answer, err := interior.Send(*port, wish)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(answer)
}

// adjuster carries out what adjust says.
func adjuster(serving *server.Server) func(interior.Wish) interior.Answer {
	return func(wish interior.Wish) interior.Answer {
		serving.SetKeys([]byte(wish.AuthorizedKeys))
		serving.Jupyter().Want(wish.Jupyter)
		return interior.Answer{Jupyter: serving.Jupyter().Seen()}
	}
}

// readJupyter: which one is wanted from the start; nil for none.
func readJupyter(config string) (*jupyter.Wish, error) {
	text, err := readOptional(filepath.Join(config, "jupyter"))
	if err != nil || len(text) == 0 {
		return nil, err
	}
	var wish jupyter.Wish
	if err := json.Unmarshal(text, &wish); err != nil {
		return nil, err
	}
	return &wish, nil
}
