package settling

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"
	"unicode"

	"gpudev/devserver/internal/messages"
)

const (
	longestReport = 4096
	longestWords  = 1000
	patience      = 10 * time.Second
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

// address is a name in the network namespace, not a file; see the one for messages.
func address(port int) *net.UnixAddr {
	return &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("@gpu-dev/dev-server/%d/settling", port)}
}

// Listen answers `settled`. Only root and whoever runs the server are answered.
func Listen(port int, watch *Watch, log *slog.Logger) error {
	listener, err := net.ListenUnix("unix", address(port))
	if err != nil {
		return fmt.Errorf("listening for questions: %w", err)
	}
	go func() {
		for {
			connection, err := listener.AcceptUnix()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				log.Warn("settling.refused", "error", err)
				time.Sleep(time.Second) // no descriptor to be had, most likely
				continue
			}
			go answer(connection, watch, log)
		}
	}()
	return nil
}

func answer(connection *net.UnixConn, watch *Watch, log *slog.Logger) {
	defer connection.Close()
	_ = connection.SetDeadline(time.Now().Add(patience))
	if uid, err := messages.PeerUID(connection); err != nil || (uid != 0 && uid != uint32(os.Geteuid())) {
		log.Warn("settling.refused", "uid", uid, "error", err)
		return
	}
	var seconds float64
	if err := json.NewDecoder(io.LimitReader(connection, longestReport)).Decode(&seconds); err != nil {
		return
	}
	within := time.Duration(seconds * float64(time.Second))
	_ = connection.SetDeadline(time.Now().Add(within + patience))
	_ = json.NewEncoder(connection).Encode(watch.Wait(within))
}

// Ask the server on this port how far it is: at the end, or after so long.
func Ask(port int, within time.Duration) (Report, error) {
	connection, err := net.DialUnix("unix", nil, address(port))
	if err != nil {
		return Report{}, fmt.Errorf("no dev server answers here: %w", err)
	}
	defer connection.Close()
	_ = connection.SetDeadline(time.Now().Add(within + patience))
	var report Report
	err = json.NewEncoder(connection).Encode(within.Seconds())
	if err == nil {
		err = json.NewDecoder(connection).Decode(&report)
	}
	if err != nil {
		return Report{}, fmt.Errorf("the dev server did not answer: %w", err)
	}
	return report, nil
}
