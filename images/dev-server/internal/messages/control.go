package messages

import (
	"log/slog"
	"time"

	"gpudev/devserver/internal/control"
)

type request struct {
	Text             string  `json:"text"`
	GreetsForSeconds float64 `json:"greets_for_seconds"`
}

type answer struct {
	Terminals int `json:"terminals"`
}

var line = control.Line[request, answer]{Topic: "message", Asked: "message", Longest: 64 * 1024}

// Listen receives messages that `tell` sends to the server on this port.
func Listen(port int, board *Board, log *slog.Logger) error {
	return line.Listen(port, func(message request) answer {
		until := time.Now().Add(time.Duration(message.GreetsForSeconds * float64(time.Second)))
		shown := board.Tell(Message{Text: message.Text, GreetsUntil: until})
		log.Info("message.shown", "terminals", shown)
		return answer{Terminals: shown}
	}, log)
}

// Send sends a message to the server on this port and returns the number of terminals that show it.
func Send(port int, text string, greetsFor time.Duration) (int, error) {
	response, err := line.Ask(port, request{Text: text, GreetsForSeconds: greetsFor.Seconds()})
	return response.Terminals, err
}
