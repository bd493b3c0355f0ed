package messages

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
	longestRequest = 64 * 1024
	patience       = 10 * time.Second
)

type request struct {
	Text             string  `json:"text"`
	GreetsForSeconds float64 `json:"greets_for_seconds"`
}

type answer struct {
	Terminals int `json:"terminals"`
}

// address is a name in the network namespace, not a file: it needs no folder that can be written and leaves nothing
// behind. Who may speak there is decided by uid.
func address(port int) *net.UnixAddr {
	return &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("@gpu-dev/dev-server/%d", port)}
}

// Listen hears what `tell` says to the server on this port.
func Listen(port int, board *Board, log *slog.Logger) error {
	listener, err := net.ListenUnix("unix", address(port))
	if err != nil {
		return fmt.Errorf("listening for messages: %w", err)
	}
	go func() {
		for {
			connection, err := listener.AcceptUnix()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				log.Warn("message.refused", "error", err)
				time.Sleep(time.Second) // no descriptor to be had, most likely
				continue
			}
			go hear(connection, board, log)
		}
	}()
	return nil
}

func hear(connection *net.UnixConn, board *Board, log *slog.Logger) {
	defer connection.Close()
	_ = connection.SetDeadline(time.Now().Add(patience))
	if uid, err := PeerUID(connection); err != nil || (uid != 0 && uid != uint32(os.Geteuid())) {
		log.Warn("message.refused", "uid", uid, "error", err)
		return
	}
	var told request
	if err := json.NewDecoder(io.LimitReader(connection, longestRequest)).Decode(&told); err != nil {
		log.Warn("message.unreadable", "error", err)
		return
	}
	until := time.Now().Add(time.Duration(told.GreetsForSeconds * float64(time.Second)))
	shown := board.Tell(Message{Text: told.Text, GreetsUntil: until})
	log.Info("message.shown", "terminals", shown)
	_ = json.NewEncoder(connection).Encode(answer{Terminals: shown}) // whoever asked has gone: the message is out
}

// PeerUID is who is at the other end.
func PeerUID(connection *net.UnixConn) (uint32, error) {
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

// Send tells the server on this port and returns in how many terminals it was shown.
func Send(port int, text string, greetsFor time.Duration) (int, error) {
	connection, err := net.DialUnix("unix", nil, address(port))
	if err != nil {
		return 0, fmt.Errorf("no dev server listens for messages here: %w", err)
	}
	defer connection.Close()
	_ = connection.SetDeadline(time.Now().Add(patience))
	told := request{Text: text, GreetsForSeconds: greetsFor.Seconds()}
	var heard answer
	err = json.NewEncoder(connection).Encode(told)
	if err == nil {
		err = json.NewDecoder(connection).Decode(&heard)
	}
	if err != nil {
		return 0, fmt.Errorf("the dev server did not take the message: %w", err)
	}
	return heard.Terminals, nil
}
