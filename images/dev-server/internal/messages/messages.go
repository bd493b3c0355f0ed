// Package messages shows what the control plane has to say to the people in a dev server: at once in every open
// terminal, and as a greeting to whoever opens a shell while it still holds. What is said, and when, is decided elsewhere.
package messages

import (
	"sync"
	"time"
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

// Board knows the open terminals and what was said lately.
type Board struct {
	mutex     sync.Mutex
	said      []Message
	terminals map[chan string]struct{}
}

// NewBoard has nothing to say yet.
func NewBoard() *Board { return &Board{terminals: map[chan string]struct{}{}} }

// Tell shows a message in all open terminals and returns how many those are.
func (board *Board) Tell(message Message) int {
	board.mutex.Lock()
	defer board.mutex.Unlock()
	board.said = append(board.said, message)
	if len(board.said) > mostRemembered {
		board.said = board.said[len(board.said)-mostRemembered:]
	}
	for terminal := range board.terminals {
		select {
		case terminal <- message.Text:
		default: // nobody reads there: it must not keep the others waiting
		}
	}
	return len(board.terminals)
}

// Greeting is the last message that still holds; empty when there is none.
func (board *Board) Greeting(now time.Time) string {
	board.mutex.Lock()
	defer board.mutex.Unlock()
	for i := len(board.said) - 1; i >= 0; i-- {
		if now.Before(board.said[i].GreetsUntil) {
			return board.said[i].Text
		}
	}
	return ""
}

// Attach returns the texts to be shown in one more terminal, until it is detached.
func (board *Board) Attach() chan string {
	board.mutex.Lock()
	defer board.mutex.Unlock()
	terminal := make(chan string, mostWaiting)
	board.terminals[terminal] = struct{}{}
	return terminal
}

// Detach closes the channel that Attach gave.
func (board *Board) Detach(terminal chan string) {
	board.mutex.Lock()
	defer board.mutex.Unlock()
	delete(board.terminals, terminal)
	close(terminal)
}
