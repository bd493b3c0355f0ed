package control

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

type question struct {
	Text string `json:"text"`
}

func newLine(t *testing.T) Line[question, int] {
	t.Helper()
	return Line[question, int]{Path: "/" + t.Name(), Topic: "test", Asked: "question", Longest: 64}
}

// port is a fake port: the pid separates tests that run in parallel.
var port = os.Getpid()

func TestAQuestionIsAnswered(t *testing.T) {
	line := newLine(t)
	length := func(asked question) int { return len(asked.Text) }
	if err := line.Listen(port, length, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "abc", strings.Repeat("x", 40)} {
		if answer, err := line.Ask(port, question{text}); answer != len(text) || err != nil {
			t.Error(answer, err)
		}
	}
}

func TestWhatCannotBeReadIsNotAnsweredAndLogged(t *testing.T) {
	line := newLine(t)
	var log bytes.Buffer
	never := func(question) int { t.Error("answered"); return 0 }
	for _, text := range []string{"no JSON", `{"text": "` + strings.Repeat("x", 100) + `"}`} {
		log.Reset()
		ours, theirs := pair(t)
		done := make(chan struct{})
		go func() {
			line.handle(theirs, never, slog.New(slog.NewTextHandler(&log, nil)))
			close(done)
		}()
		if _, err := io.WriteString(ours, text); err != nil {
			t.Fatal(err)
		}
		if answer, _ := io.ReadAll(ours); len(answer) != 0 {
			t.Errorf("%q: %q", text, answer)
		}
		<-done
		if !strings.Contains(log.String(), "test.unreadable") {
			t.Errorf("%q: %q", text, log.String())
		}
	}
}

func TestAskingWhereNobodyListensSaysSo(t *testing.T) {
	_, err := newLine(t).Ask(port, question{"hello"})
	if err == nil || !strings.Contains(err.Error(), "no dev server accepts a question here") {
		t.Error(err)
	}
}

func TestAServerThatDoesNotTakeAQuestionIsNotWaitedFor(t *testing.T) {
	line := newLine(t)
	listener, err := net.ListenUnix("unix", line.address(port))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		if connection, err := listener.Accept(); err == nil {
			_ = connection.Close()
		}
	}()
	if _, err := line.Ask(port, question{"hello"}); err == nil || !strings.Contains(err.Error(), "did not accept the question") {
		t.Error(err)
	}
}

func TestASlowAnswerIsWaitedForAndCanStillBeSent(t *testing.T) {
	line := newLine(t)
	line.Waits = func(question) time.Duration { return time.Hour }
	asked, answer := make(chan struct{}), make(chan int)
	slow := func(question) int { close(asked); return <-answer }
	if err := line.Listen(port, slow, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	go func() { <-asked; answer <- 7 }()
	if response, err := line.Ask(port, question{}); response != 7 || err != nil {
		t.Error(response, err)
	}
}

// pair returns both ends of a connection.
func pair(t *testing.T) (*net.UnixConn, *net.UnixConn) {
	t.Helper()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: t.TempDir() + "/socket"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ours, err := net.DialUnix("unix", nil, listener.Addr().(*net.UnixAddr))
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := listener.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = ours.Close(), theirs.Close() })
	return ours, theirs
}
