package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"gpudev/devserver/internal/addons"
	"gpudev/devserver/internal/jupyter"
	"gpudev/devserver/internal/server"
)

// adjust sends the desired addons from standard input to the server and prints their status.
func adjust(arguments []string) error {
	flags := flag.NewFlagSet("adjust", flag.ContinueOnError)
	port := flags.Int("port", usualPort, "the SSH port of the server")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	var options addons.Options
	if err := json.NewDecoder(os.Stdin).Decode(&options); err != nil {
		return fmt.Errorf("reading standard input: %w", err)
	}
	answer, err := addons.Send(*port, options)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(answer)
}

// adjuster applies the desired addons.
func adjuster(serving *server.Server) func(addons.Options) addons.Answer {
	return func(options addons.Options) addons.Answer {
		serving.SetKeys([]byte(options.AuthorizedKeys))
		serving.Jupyter().Set(options.Jupyter)
		return addons.Answer{Jupyter: serving.Jupyter().Status()}
	}
}

// readJupyter returns the Jupyter to start with; nil for none.
func readJupyter(config string) (*jupyter.Options, error) {
	text, err := readOptional(filepath.Join(config, "jupyter"))
	if err != nil || len(text) == 0 {
		return nil, err
	}
	var options jupyter.Options
	if err := json.Unmarshal(text, &options); err != nil {
		return nil, err
	}
	return &options, nil
}
