package runend

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"unicode"
)

const (
	mostLines   = 12
	longestLine = 300
	longestTold = 1500
	startOfLine = "\r"
)

// Report is what the control plane is told.
type Report struct {
	// ExitCode is nil for one that was ended from outside.
	ExitCode *int `json:"exit_code"`
	// Last is what it wrote last.
	Last string `json:"last"`
}

// Tell writes it where the cluster finds a container's last words. There must be such a file.
func (report Report) Tell(path string) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // there is room for few bytes
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

// lastLines as a terminal would show them: what a progress bar has written over itself is what it wrote last.
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
	for len(strings.Join(shown, "\n")) > longestTold {
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
