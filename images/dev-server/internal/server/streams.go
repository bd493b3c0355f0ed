package server

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	chunk = 64 * 1024
	// moreThanATerminalHolds limits the output that is still delivered after the child on a terminal has ended.
	moreThanATerminalHolds = 256 * 1024
)

var buffers = sync.Pool{New: func() any { return new([chunk]byte) }}

// copyAll is io.Copy without its shortcuts: it writes what it reads, and a slow reader causes back-pressure.
func copyAll(to io.Writer, from io.Reader) (int64, error) {
	buffer := buffers.Get().(*[chunk]byte)
	defer buffers.Put(buffer)
	var total int64
	for {
		count, err := from.Read(buffer[:])
		if count > 0 {
			written, writeErr := to.Write(buffer[:count])
			total += int64(written)
			if writeErr != nil {
				return total, writeErr
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, unix.EIO) { // EIO: the last process on the terminal has ended
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// terminalPump copies the output of a terminal to the client.
type terminalPump struct {
	master *os.File
	ended  chan struct{}
}

// run ends when no process has the terminal open, or some time after finish.
func (pump *terminalPump) run(to io.Writer) {
	_, err := copyAll(to, pump.master)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		pump.drain(to)
	}
	close(pump.ended)
}

// finish makes the pump deliver the output so far, without waiting for further output.
func (pump *terminalPump) finish() {
	_ = pump.master.SetReadDeadline(time.Now())
	<-pump.ended
}

// drain reads the rest after the deadline, without waiting.
func (pump *terminalPump) drain(to io.Writer) {
	raw, err := pump.master.SyscallConn()
	if err != nil {
		return
	}
	buffer := buffers.Get().(*[chunk]byte)
	defer buffers.Put(buffer)
	for total := 0; total < moreThanATerminalHolds; {
		count := readNow(raw, buffer[:])
		if count <= 0 {
			return
		}
		if _, err := to.Write(buffer[:count]); err != nil {
			return
		}
		total += count
	}
}

func readNow(raw syscall.RawConn, buffer []byte) int {
	count := 0
	_ = raw.Control(func(fd uintptr) { count, _ = unix.Read(int(fd), buffer) })
	return count
}
