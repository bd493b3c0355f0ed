// Package interior is what the control plane may change in a dev server that runs: who may log in, and Jupyter.
package interior

import (
	"encoding/json"
	"errors"
	"log/slog"

	"gpudev/devserver/internal/control"
	"gpudev/devserver/internal/jupyter"
)

// Wish is all that shall be so.
type Wish struct {
	// AuthorizedKeys are the lines of the file of that name, which they replace.
	AuthorizedKeys string `json:"authorized_keys"`
	// Jupyter is nil where it shall not run.
	Jupyter *jupyter.Wish `json:"jupyter"`
}

// Answer tells how it is then.
type Answer struct {
	Jupyter *jupyter.Seen `json:"jupyter"`
}

// UnmarshalJSON takes only what says everything: nobody is sent away by an empty message.
func (wish *Wish) UnmarshalJSON(text []byte) error {
	var said struct {
		AuthorizedKeys *string       `json:"authorized_keys"`
		Jupyter        *jupyter.Wish `json:"jupyter"`
	}
	if err := json.Unmarshal(text, &said); err != nil {
		return err
	}
	if said.AuthorizedKeys == nil {
		return errors.New("it does not say who may log in")
	}
	*wish = Wish{*said.AuthorizedKeys, said.Jupyter}
	return nil
}

var line = control.Line[Wish, Answer]{Path: "/interior", Topic: "interior", Asked: "change", Longest: 2 * 1024 * 1024}

// Listen hears what `adjust` says to the server on this port.
func Listen(port int, adjust func(Wish) Answer, log *slog.Logger) error {
	return line.Listen(port, adjust, log)
}

// Send tells the server on this port.
func Send(port int, wish Wish) (Answer, error) { return line.Ask(port, wish) }
