package settling

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

// Watch keeps what was last reported.
type Watch struct {
	mutex  sync.Mutex
	report Report
	ended  chan struct{}
}

// NewWatch has heard nothing yet.
func NewWatch() *Watch { return &Watch{ended: make(chan struct{})} }

// Hear reads reports until there are no more. Whoever sends them has the person's rights: they are a stranger's text.
func (watch *Watch) Hear(reports io.Reader) {
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

// End says that nothing more will come; words, where something else is to be told than what was.
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

// Wait answers what was last reported: at the end, or after so long.
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
	Path: "/settling", Topic: "settling", Asked: "question", Longest: longestReport, Waits: seconds,
}

// Listen answers `settled`.
func Listen(port int, watch *Watch, log *slog.Logger) error {
	return line.Listen(port, func(within float64) Report { return watch.Wait(seconds(within)) }, log)
}

// Ask the server on this port how far it is: at the end, or after so long.
func Ask(port int, within time.Duration) (Report, error) { return line.Ask(port, within.Seconds()) }

func seconds(number float64) time.Duration { return time.Duration(number * float64(time.Second)) }
