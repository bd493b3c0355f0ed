// Package control lets a command that the control plane runs in the container talk to the server: one request and one
// response in JSON on a unix socket.
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
	// patience covers reading and writing a few lines.
	patience = 10 * time.Second
	restTime = time.Second
)

// Line is one kind of request and response.
type Line[Question, Answer any] struct {
	// Path follows the server's port in the socket's name.
	Path string
	// Topic is the prefix of its log events.
	Topic string
	// Asked is the name of the request in errors: "message".
	Asked string
	// Longest is the maximum size of a request in bytes.
	Longest int64
	// Waits is the extra time that the response may take. Nil: none.
	Waits func(Question) time.Duration
}

// address is an abstract socket: it needs no writable folder and leaves nothing behind. Access is checked by uid.
func (line Line[Question, Answer]) address(port int) *net.UnixAddr {
	return &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("@gpu-dev/dev-server/%d%s", port, line.Path)}
}

// Listen handles requests to the server on this port as long as the process lives. Only root and the server's own user
// are accepted.
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
			time.Sleep(restTime) // most likely out of descriptors
			continue
		}
		go line.handle(connection, answer, log)
	}
}

func (line Line[Question, Answer]) handle(connection *net.UnixConn, answer func(Question) Answer, log *slog.Logger) {
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
	_ = json.NewEncoder(connection).Encode(answered) // the client may be gone; the request is done all the same
}

// Ask sends a request to the server on this port.
func (line Line[Question, Answer]) Ask(port int, question Question) (Answer, error) {
	var answer Answer
	connection, err := net.DialUnix("unix", nil, line.address(port))
	if err != nil {
		return answer, fmt.Errorf("no dev server accepts a %s here: %w", line.Asked, err)
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
		return none, fmt.Errorf("the dev server did not accept the %s: %w", line.Asked, err)
	}
	return answer, nil
}

// peerUID returns the uid of the peer.
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
