// Package commandexit detects the exit of the detached command of a dev server. It keeps no state: the command and its
// exit are in files of the home, written by the program that started it. What follows is decided elsewhere.
package commandexit

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
	// endsIn names the reservation that ends with the command: a disk may have files of earlier reservations.
	endsIn = "ends"

	checkEvery = time.Second
	// lingers is the time for clients to read the last output and the exit code.
	lingers = 3 * time.Second
	short   = 256
	tail    = 16 * 1024
)

// Watch examines one home, with its owner's permissions.
type Watch struct {
	Home          string
	ReservationID string
	Identity      process.Identity
}

// Wait returns some seconds after the exit.
func (watch Watch) Wait() Report {
	var over time.Time
	for ; ; time.Sleep(checkEvery) {
		report, isOver := watch.Check()
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

// Check returns whether the command has exited, and how.
func (watch Watch) Check() (Report, bool) {
	var report Report
	var isOver bool
	err := watch.Identity.Do(func() error {
		report, isOver = watch.check()
		return nil
	})
	return report, isOver && err == nil
}

func (watch Watch) check() (Report, bool) {
	if watch.ReservationID == "" || string(bytes.TrimSpace(watch.read(endsIn, short))) != watch.ReservationID {
		return Report{}, false // no command, another reservation's, or one that keeps its reservation
	}
	isRunning := isOurs(watch.read(processIn, short))
	exit := bytes.TrimSpace(watch.read(exitIn, short)) // read after the pid: a command that exits in between has written it by now
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

// read returns the end of a file; nothing if it is missing or not a regular file.
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

// isOurs: a pid from before a restart may belong to another process by now.
func isOurs(pid []byte) bool {
	number, err := strconv.ParseUint(string(bytes.TrimSpace(pid)), 10, 31)
	if err != nil {
		return false
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", number))
	return err == nil && bytes.Contains(line, []byte(folder))
}
