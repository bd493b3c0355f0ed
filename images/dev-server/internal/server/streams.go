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
	// moreThanATerminalHolds bounds what is still delivered once the child on a terminal has ended.
	moreThanATerminalHolds = 256 * 1024
)

var buffers = sync.Pool{New: func() any { return new([chunk]byte) }}

// copyAll is io.Copy without its detours: what is read is written, and a full reader's side pushes back.
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
		if errors.Is(err, io.EOF) || errors.Is(err, unix.EIO) { // EIO: the last holder of the terminal has gone
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// terminalPump carries what is written on a terminal to the client.
type terminalPump struct {
	master *os.File
	ended  chan struct{}
}

// run ends when nobody holds the terminal any more, or some time after finish.
func (pump *terminalPump) run(to io.Writer) {
	_, err := copyAll(to, pump.master)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		pump.drain(to)
	}
	close(pump.ended)
}

// finish has the pump deliver what has been written by now; whoever goes on writing is not waited for.
func (pump *terminalPump) finish() {
	_ = pump.master.SetReadDeadline(time.Now())
	<-pump.ended
}

// drain reads past the deadline, without waiting.
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
