// Package addons is what the control plane can change in a running dev server: authorized keys and Jupyter.
package addons

import (
	"encoding/json"
	"errors"
	"log/slog"

	"gpudev/devserver/internal/control"
	"gpudev/devserver/internal/jupyter"
)

// Options is the complete desired state.
type Options struct {
	// AuthorizedKeys replace the lines of the file of that name.
	AuthorizedKeys string `json:"authorized_keys"`
	// Jupyter is nil if it should not run.
	Jupyter *jupyter.Options `json:"jupyter"`
}

// Answer is the resulting status.
type Answer struct {
	Jupyter *jupyter.Status `json:"jupyter"`
}

// UnmarshalJSON requires authorized_keys, so that an empty message disconnects nobody.
func (options *Options) UnmarshalJSON(text []byte) error {
	var fields struct {
		AuthorizedKeys *string          `json:"authorized_keys"`
		Jupyter        *jupyter.Options `json:"jupyter"`
	}
	if err := json.Unmarshal(text, &fields); err != nil {
		return err
	}
	if fields.AuthorizedKeys == nil {
		return errors.New("authorized_keys is missing")
	}
	*options = Options{*fields.AuthorizedKeys, fields.Jupyter}
	return nil
}

var line = control.Line[Options, Answer]{Path: "/addons", Topic: "addons", Asked: "change", Longest: 2 * 1024 * 1024}

// Listen receives the desired state that `adjust` sends to the server on this port.
func Listen(port int, adjust func(Options) Answer, log *slog.Logger) error {
	return line.Listen(port, adjust, log)
}

// Send sends the desired state to the server on this port.
func Send(port int, options Options) (Answer, error) { return line.Ask(port, options) }
