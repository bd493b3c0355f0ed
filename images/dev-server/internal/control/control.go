// Package control is how a process that the control plane starts beside a server asks it something: one question and one
// answer in JSON on a unix socket. What is asked, and what comes of it, is decided elsewhere.
package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// patience is for all that takes no time by itself: writing and reading a few lines.
	patience = 10 * time.Second
	restTime = time.Second
)

// Line is one kind of question and its answer.
type Line[Question, Answer any] struct {
	// Path follows the server's port in the socket's name.
	Path string
	// Topic begins the names of what is logged about it.
	Topic string
	// Asked is what one asks with, in words: "message".
	Asked string
	// Longest is how many bytes of a question are read.
	Longest int64
	// Waits is how long an answer may be waited for beyond what is usual. Nil: it comes at once.
	Waits func(Question) time.Duration
}

// address is a name in the network namespace, not a file: it needs no folder that can be written and leaves nothing
// behind. Who may speak there is decided by uid.
func (line Line[Question, Answer]) address(port int) *net.UnixAddr {
	return &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("@gpu-dev/dev-server/%d%s", port, line.Path)}
}

// Listen has questions to the server on this port answered, as long as the process lives. Only root and whoever runs the
// server are heard.
func (line Line[Question, Answer]) Listen(port int, answer func(Question) Answer, log *slog.Logger) error {
	listener, err := net.ListenUnix("unix", line.address(port))
	if err != nil {
		return fmt.Errorf("listening for a %s: %w", line.Asked, err)
	}
	go line.serve(listener, answer, log)
	return nil
}

func (line Line[Question, Answer]) serve(listener *net.UnixListener, answer func(Question) Answer, log *slog.Logger) {
	for {
		connection, err := listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			log.Warn(line.Topic+".refused", "error", err)
			time.Sleep(restTime) // no descriptor to be had, most likely
			continue
		}
		go line.hear(connection, answer, log)
	}
}

func (line Line[Question, Answer]) hear(connection *net.UnixConn, answer func(Question) Answer, log *slog.Logger) {
	defer connection.Close()
	_ = connection.SetDeadline(time.Now().Add(patience))
	if uid, err := peerUID(connection); err != nil || (uid != 0 && uid != uint32(os.Geteuid())) {
		log.Warn(line.Topic+".refused", "uid", uid, "error", err)
		return
	}
	var question Question
	if err := json.NewDecoder(io.LimitReader(connection, line.Longest)).Decode(&question); err != nil {
		log.Warn(line.Topic+".unreadable", "error", err)
		return
	}
	answered := answer(question)
	_ = connection.SetDeadline(time.Now().Add(patience))
	_ = json.NewEncoder(connection).Encode(answered) // whoever asked has gone: it is so all the same
}

// Ask the server on this port.
func (line Line[Question, Answer]) Ask(port int, question Question) (Answer, error) {
	var answer Answer
	connection, err := net.DialUnix("unix", nil, line.address(port))
	if err != nil {
		return answer, fmt.Errorf("no dev server listens for a %s here: %w", line.Asked, err)
	}
	defer connection.Close()
	within := patience
	if line.Waits != nil {
		within += line.Waits(question)
	}
	_ = connection.SetDeadline(time.Now().Add(within))
	err = json.NewEncoder(connection).Encode(question)
	if err == nil {
		err = json.NewDecoder(connection).Decode(&answer)
	}
	if err != nil {
		var none Answer
		return none, fmt.Errorf("the dev server did not take the %s: %w", line.Asked, err)
	}
	return answer, nil
}

// peerUID is who is at the other end.
func peerUID(connection *net.UnixConn) (uint32, error) {
	raw, err := connection.SyscallConn()
	if err != nil {
		return 0, err
	}
	var credentials *unix.Ucred
	var inner error
	if err := raw.Control(func(fd uintptr) {
		credentials, inner = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if inner != nil {
		return 0, inner
	}
	return credentials.Uid, nil
}
