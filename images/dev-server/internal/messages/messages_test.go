package messages

import (
	"strings"
	"testing"
	"time"
)

func TestNothingThatATerminalWouldObeyIsShown(t *testing.T) {
	for _, text := range []string{"a\x1b[2Jb", "a\tb", "a\x9bb", "a\x00b", "a\xffb", "a\u202eb", "a\u00adb"} {
		for _, shown := range []string{string(OnNewLines(text)), string(Above(text, "xterm", 80))} {
			if inner := shown[strings.Index(shown, "***"):strings.LastIndex(shown, "***")]; strings.ContainsFunc(inner, func(r rune) bool { return printable(r) == ' ' && r != ' ' }) {
				t.Errorf("%q shows as %q", text, shown)
			}
		}
	}
}

func TestEachLineStandsByItself(t *testing.T) {
	if shown := string(OnNewLines("one\n\r\n  \ntwo\n")); shown != "\r\n*** one ***\r\n*** two ***\r\n" {
		t.Errorf("%q", shown)
	}
	if shown := OnNewLines(" \n"); shown != nil {
		t.Errorf("%q", shown)
	}
}

func TestALongLineTakesAsManyRowsAsItNeeds(t *testing.T) {
	for columns := 1; columns < 30; columns++ {
		for _, row := range folded("*** Eine lange Zeile 日本語 ***", columns) {
			if width := len([]rune(row)) + strings.Count(row, "日") + strings.Count(row, "本") + strings.Count(row, "語"); width > max(columns, 2) {
				t.Errorf("%q is wider than %d", row, columns)
			}
		}
	}
}

func TestATerminalThatCannotInsertLinesGetsNewOnes(t *testing.T) {
	for _, term := range []string{"", "dumb"} {
		if shown := string(Above("x", term, 80)); shown != "\r\n*** x ***\r\n" {
			t.Errorf("%q", shown)
		}
	}
}

func TestTheLastMessageThatHoldsGreets(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	board := NewBoard()
	if greeting := board.Greeting(now); greeting != "" {
		t.Error(greeting)
	}
	board.Tell(Message{"older", now.Add(time.Hour)})
	board.Tell(Message{"still true", now.Add(time.Minute)})
	board.Tell(Message{"over", now})
	for offset, wanted := range map[time.Duration]string{0: "still true", time.Minute: "older", time.Hour: ""} {
		if greeting := board.Greeting(now.Add(offset)); greeting != wanted {
			t.Errorf("after %v: %q", offset, greeting)
		}
	}
}

func TestATerminalThatDoesNotReadKeepsNobodyWaiting(t *testing.T) {
	board := NewBoard()
	stuck, fine := board.Attach(), board.Attach()
	for range 10 * mostWaiting {
		board.Tell(Message{Text: "x"})
		<-fine
	}
	if len(stuck) != mostWaiting || len(board.messages) != mostRemembered {
		t.Error(len(stuck), len(board.messages))
	}
	board.Detach(stuck)
	if shown := board.Tell(Message{Text: "y"}); shown != 1 {
		t.Error(shown)
	}
}
