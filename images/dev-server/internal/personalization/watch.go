package personalization

import (
	"bufio"
	"encoding/json"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"
	"unicode"

	"gpudev/devserver/internal/control"
)

const (
	longestReport = 4096
	longestWords  = 1000
)

// Watch holds the last report.
type Watch struct {
	mutex  sync.Mutex
	report Report
	ended  chan struct{}
}

// NewWatch creates a watch without a report.
func NewWatch() *Watch { return &Watch{ended: make(chan struct{})} }

// Read reads reports until the end. They are untrusted, because their sender has the user's permissions.
func (watch *Watch) Read(reports io.Reader) {
	lines := bufio.NewScanner(reports)
	lines.Buffer(nil, longestReport)
	for lines.Scan() {
		var report Report
		if json.Unmarshal(lines.Bytes(), &report) == nil {
			watch.set(Report{plain(report.Words), false})
		}
	}
	watch.End("")
}

// End marks the end of the reports; words replace the last report unless empty.
func (watch *Watch) End(words string) {
	watch.mutex.Lock()
	defer watch.mutex.Unlock()
	if words != "" {
		watch.report.Words = words
	}
	if !watch.report.Final {
		watch.report.Final = true
		close(watch.ended)
	}
}

// Wait returns the last report, at the end or after the given time.
func (watch *Watch) Wait(within time.Duration) Report {
	select {
	case <-watch.ended:
	case <-time.After(within):
	}
	watch.mutex.Lock()
	defer watch.mutex.Unlock()
	return watch.report
}

func (watch *Watch) set(report Report) {
	watch.mutex.Lock()
	defer watch.mutex.Unlock()
	watch.report = report
}

func plain(words string) string {
	words = strings.Map(func(letter rune) rune {
		if unicode.IsPrint(letter) {
			return letter
		}
		return -1
	}, words)
	if len(words) > longestWords {
		words = strings.ToValidUTF8(words[:longestWords], "")
	}
	return words
}

var line = control.Line[float64, Report]{
	Path: "/personalization", Topic: "personalization", Asked: "question", Longest: longestReport, Waits: seconds,
}

// Listen answers `settled`.
func Listen(port int, watch *Watch, log *slog.Logger) error {
	return line.Listen(port, func(within float64) Report { return watch.Wait(seconds(within)) }, log)
}

// Ask asks the server on this port for the report, at the end or after the given time.
func Ask(port int, within time.Duration) (Report, error) { return line.Ask(port, within.Seconds()) }

func seconds(number float64) time.Duration { return time.Duration(number * float64(time.Second)) }
