// Package interior is what the control plane may change in a dev server that runs: who may log in, and Jupyter.
package interior

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"time"

	"gpudev/devserver/internal/jupyter"
	"gpudev/devserver/internal/messages"
)

const (
	longestRequest = 2 * 1024 * 1024
	patience       = 10 * time.Second
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

// address is a name in the network namespace, not a file; see the one for messages.
func address(port int) *net.UnixAddr {
	return &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("@gpu-dev/dev-server/%d/interior", port)}
}

// Listen hears what `adjust` says to the server on this port. Only root and whoever runs the server are heard.
func Listen(port int, adjust func(Wish) Answer, log *slog.Logger) error {
	listener, err := net.ListenUnix("unix", address(port))
	if err != nil {
		return fmt.Errorf("listening for changes: %w", err)
	}
	go func() {
		for {
			connection, err := listener.AcceptUnix()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				log.Warn("interior.refused", "error", err)
				time.Sleep(time.Second) // no descriptor to be had, most likely
				continue
			}
			go hear(connection, adjust, log)
		}
	}()
	return nil
}

func hear(connection *net.UnixConn, adjust func(Wish) Answer, log *slog.Logger) {
	defer connection.Close()
	_ = connection.SetDeadline(time.Now().Add(patience))
	if uid, err := messages.PeerUID(connection); err != nil || (uid != 0 && uid != uint32(os.Geteuid())) {
		log.Warn("interior.refused", "uid", uid, "error", err)
		return
	}
	wish, err := Parse(io.LimitReader(connection, longestRequest))
	if err != nil {
		log.Warn("interior.unreadable", "error", err)
		return
	}
	_ = json.NewEncoder(connection).Encode(adjust(wish)) // whoever asked has gone: it is so all the same
}

// Parse reads a wish. What it does not say everything about is none: nobody is sent away by an empty message.
func Parse(text io.Reader) (Wish, error) {
	var wish struct {
		AuthorizedKeys *string       `json:"authorized_keys"`
		Jupyter        *jupyter.Wish `json:"jupyter"`
	}
	if err := json.NewDecoder(text).Decode(&wish); err != nil {
		return Wish{}, err
	}
	if wish.AuthorizedKeys == nil {
		return Wish{}, errors.New("it does not say who may log in")
	}
	return Wish{*wish.AuthorizedKeys, wish.Jupyter}, nil
}

// Send tells the server on this port.
func Send(port int, wish Wish) (Answer, error) {
	connection, err := net.DialUnix("unix", nil, address(port))
	if err != nil {
		return Answer{}, fmt.Errorf("no dev server listens for changes here: %w", err)
	}
	defer connection.Close()
	_ = connection.SetDeadline(time.Now().Add(patience))
	var heard Answer
	err = json.NewEncoder(connection).Encode(wish)
	if err == nil {
		err = json.NewDecoder(connection).Decode(&heard)
	}
	if err != nil {
		return Answer{}, fmt.Errorf("the dev server did not take the change: %w", err)
	}
	return heard, nil
}
