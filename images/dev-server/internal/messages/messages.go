// Package messages shows what the control plane has to say to the people in a dev server: at once in every open
// terminal, and as a greeting to whoever opens a shell while it still holds. What is said, and when, is decided elsewhere.
package messages

import (
	"strings"
	"sync"
	"time"
	"unicode"
)

const (
	mostRemembered = 50
	mostWaiting    = 16
)

// Message greets new shells until GreetsUntil.
type Message struct {
	Text        string
	GreetsUntil time.Time
}

// ForTerminal puts it on lines of its own, with nothing in it that a terminal would obey.
func ForTerminal(text string) []byte {
	var shown strings.Builder
	for line := range strings.FieldsFuncSeq(text, isLineBreak) {
		clean := strings.Map(printable, strings.ToValidUTF8(line, " "))
		if strings.TrimSpace(clean) != "" {
			shown.WriteString("\r\n*** " + clean + " ***")
		}
	}
	if shown.Len() == 0 {
		return nil
	}
	return []byte(shown.String() + "\r\n")
}

func isLineBreak(letter rune) bool { return letter == '\n' || letter == '\r' }

func printable(letter rune) rune {
	if unicode.IsPrint(letter) {
		return letter
	}
	return ' '
}

// Board knows the open terminals and what was said lately.
type Board struct {
	mutex     sync.Mutex
	said      []Message
	terminals map[chan []byte]struct{}
}

// NewBoard has nothing to say yet.
func NewBoard() *Board { return &Board{terminals: map[chan []byte]struct{}{}} }

// Tell shows a message in all open terminals and returns how many those are.
func (board *Board) Tell(message Message) int {
	board.mutex.Lock()
	defer board.mutex.Unlock()
	board.said = append(board.said, message)
	if len(board.said) > mostRemembered {
		board.said = board.said[len(board.said)-mostRemembered:]
	}
	shown := ForTerminal(message.Text)
	for terminal := range board.terminals {
		select {
		case terminal <- shown:
		default: // nobody reads there: it must not keep the others waiting
		}
	}
	return len(board.terminals)
}

// Greeting is the last message that still holds, as a terminal shows it; empty when there is none.
func (board *Board) Greeting(now time.Time) []byte {
	board.mutex.Lock()
	defer board.mutex.Unlock()
	for i := len(board.said) - 1; i >= 0; i-- {
		if now.Before(board.said[i].GreetsUntil) {
			return ForTerminal(board.said[i].Text)
		}
	}
	return nil
}

// Attach returns what is to be shown in one more terminal, until it is detached.
func (board *Board) Attach() chan []byte {
	board.mutex.Lock()
	defer board.mutex.Unlock()
	terminal := make(chan []byte, mostWaiting)
	board.terminals[terminal] = struct{}{}
	return terminal
}

// Detach closes the channel that Attach gave.
func (board *Board) Detach(terminal chan []byte) {
	board.mutex.Lock()
	defer board.mutex.Unlock()
	delete(board.terminals, terminal)
	close(terminal)
}
