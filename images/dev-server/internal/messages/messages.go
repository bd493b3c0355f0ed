// Package messages shows the control plane's messages to the users of a dev server: at once in every open terminal, and
// when a shell opens while the message is valid. Their content and time are decided elsewhere.
package messages

import (
	"sync"
	"time"
)

const (
	mostRemembered = 50
	mostWaiting    = 16
)

// Message is also shown in new shells until GreetsUntil.
type Message struct {
	Text        string
	GreetsUntil time.Time
}

// Board has the open terminals and the recent messages.
type Board struct {
	mutex     sync.Mutex
	messages  []Message
	terminals map[chan string]struct{}
}

// NewBoard creates an empty board.
func NewBoard() *Board { return &Board{terminals: map[chan string]struct{}{}} }

// Tell shows a message in all open terminals and returns their number.
func (board *Board) Tell(message Message) int {
	board.mutex.Lock()
	defer board.mutex.Unlock()
	board.messages = append(board.messages, message)
	if len(board.messages) > mostRemembered {
		board.messages = board.messages[len(board.messages)-mostRemembered:]
	}
	for terminal := range board.terminals {
		select {
		case terminal <- message.Text:
		default: // does not read: it must not block the others
		}
	}
	return len(board.terminals)
}

// Greeting is the last valid message; empty if there is none.
func (board *Board) Greeting(now time.Time) string {
	board.mutex.Lock()
	defer board.mutex.Unlock()
	for i := len(board.messages) - 1; i >= 0; i-- {
		if now.Before(board.messages[i].GreetsUntil) {
			return board.messages[i].Text
		}
	}
	return ""
}

// Attach registers a terminal and returns the channel of texts to show in it.
func (board *Board) Attach() chan string {
	board.mutex.Lock()
	defer board.mutex.Unlock()
	terminal := make(chan string, mostWaiting)
	board.terminals[terminal] = struct{}{}
	return terminal
}

// Detach closes the channel from Attach.
func (board *Board) Detach(terminal chan string) {
	board.mutex.Lock()
	defer board.mutex.Unlock()
	delete(board.terminals, terminal)
	close(terminal)
}
