package commandexit

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"unicode"
)

const (
	mostLines     = 12
	longestLine   = 300
	longestReport = 1500
	startOfLine   = "\r"
)

// Report is sent to the control plane.
type Report struct {
	// ExitCode is nil if the command was killed from outside.
	ExitCode *int `json:"exit_code"`
	// Last has the last lines of its output.
	Last string `json:"last"`
}

// Write writes the report to the termination log, which must exist.
func (report Report) Write(path string) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // space is limited
	if err := encoder.Encode(report); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = file.Write(bytes.TrimSpace(text.Bytes()))
	if closed := file.Close(); err == nil {
		err = closed
	}
	return err
}

// lastLines returns the lines as a terminal would show them: of a progress bar, only its last state.
func lastLines(written []byte) string {
	var shown []string
	for line := range strings.SplitSeq(strings.ToValidUTF8(string(written), ""), "\n") {
		line = strings.TrimRight(line, startOfLine)
		line = plain(line[strings.LastIndex(line, startOfLine)+1:])
		if line != "" {
			shown = append(shown, line)
		}
	}
	shown = shown[max(0, len(shown)-mostLines):]
	for len(strings.Join(shown, "\n")) > longestReport {
		shown = shown[1:]
	}
	return strings.Join(shown, "\n")
}

func plain(line string) string {
	line = strings.Map(func(letter rune) rune {
		if unicode.IsPrint(letter) {
			return letter
		}
		return -1
	}, line)
	if len(line) > longestLine {
		line = strings.ToValidUTF8(line[:longestLine], "")
	}
	return strings.TrimRight(line, " ")
}
