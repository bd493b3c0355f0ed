// Package runend sees when the command has ended for which a dev server was reserved. It remembers nothing: what was begun
// and how it ended is in the home, written there by whoever began it. What follows from it is decided elsewhere.
package runend

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"gpudev/devserver/internal/process"
)

const (
	folder    = ".gpu-dev-run"
	outputIn  = "output"
	processIn = "pid"
	exitIn    = "exit"
	// endsIn names the reservation that ends with the command: a home may be a disk that has seen others.
	endsIn = "ends"

	lookEvery = time.Second
	// lingers is for whoever follows the output: they can read the last of it, and the exit code.
	lingers = 3 * time.Second
	short   = 256
	tail    = 16 * 1024
)

// Watch looks at one home, with the rights of its owner.
type Watch struct {
	Home          string
	ReservationID string
	Identity      process.Identity
}

// Wait until it has ended, and for a moment more.
func (watch Watch) Wait() Report {
	var over time.Time
	for ; ; time.Sleep(lookEvery) {
		report, isOver := watch.Look()
		switch {
		case !isOver:
			over = time.Time{}
		case over.IsZero():
			over = time.Now()
		case time.Since(over) >= lingers:
			return report
		}
	}
}

// Look tells whether it has ended, and how.
func (watch Watch) Look() (Report, bool) {
	var report Report
	var isOver bool
	err := watch.Identity.Do(func() error {
		report, isOver = watch.look()
		return nil
	})
	return report, isOver && err == nil
}

func (watch Watch) look() (Report, bool) {
	if watch.ReservationID == "" || string(bytes.TrimSpace(watch.read(endsIn, short))) != watch.ReservationID {
		return Report{}, false // none was begun, another reservation's on this disk, or one that keeps it
	}
	isRunning := isOurs(watch.read(processIn, short))
	exit := bytes.TrimSpace(watch.read(exitIn, short)) // after that: one that ends meanwhile has written it by now
	if len(exit) == 0 && isRunning {
		return Report{}, false
	}
	report := Report{Last: lastLines(watch.read(outputIn, tail))}
	if code, err := strconv.ParseUint(string(exit), 10, 8); err == nil {
		number := int(code)
		report.ExitCode = &number
	}
	return report, true
}

// read the end of a file; nothing where there is none, or something that is no file.
func (watch Watch) read(name string, most int64) []byte {
	path := filepath.Join(watch.Home, folder, name)
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	text := make([]byte, min(most, info.Size()))
	count, err := file.ReadAt(text, info.Size()-int64(len(text)))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil
	}
	return text[:count]
}

// isOurs: of a dev server's earlier life a number may be left that somebody else has by now.
func isOurs(pid []byte) bool {
	number, err := strconv.ParseUint(string(bytes.TrimSpace(pid)), 10, 31)
	if err != nil {
		return false
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", number))
	return err == nil && bytes.Contains(line, []byte(folder))
}
