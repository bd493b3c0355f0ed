package messages

import (
	"fmt"
	"strings"
	"unicode"
)

// OnNewLines is how a terminal shows a text before anything else is on it: on lines of its own, with nothing in it that
// a terminal would obey.
func OnNewLines(text string) []byte {
	var shown strings.Builder
	for _, line := range cleanLines(text) {
		shown.WriteString("\r\n" + line)
	}
	if shown.Len() == 0 {
		return nil
	}
	return []byte(shown.String() + "\r\n")
}

// Above is how a terminal in use shows a text: lines are inserted above the one with the cursor, so that what somebody
// is typing or a program is drawing there stays, and so do cursor and colours. Terminals that cannot do so get new lines.
func Above(text, term string, columns int) []byte {
	if term == "" || term == "dumb" || columns < 1 {
		return OnNewLines(text)
	}
	var rows []string
	for _, line := range cleanLines(text) {
		rows = append(rows, folded(line, columns)...)
	}
	count := len(rows)
	if count == 0 {
		return nil
	}
	// Make room below (at the bottom of the screen it scrolls), go back up, remember, insert, write, and return.
	return fmt.Appendf(nil, "%s\x1b[%dA\x1b7\r\x1b[%dL\x1b[0m%s\x1b8\x1b[%dB",
		strings.Repeat("\n", count), count, count, strings.Join(rows, "\r\n"), count)
}

func cleanLines(text string) []string {
	var lines []string
	for line := range strings.FieldsFuncSeq(text, isLineBreak) {
		clean := strings.Map(printable, strings.ToValidUTF8(line, " "))
		if strings.TrimSpace(clean) != "" {
			lines = append(lines, "*** "+clean+" ***")
		}
	}
	return lines
}

func isLineBreak(letter rune) bool { return letter == '\n' || letter == '\r' }

func printable(letter rune) rune {
	if unicode.IsPrint(letter) {
		return letter
	}
	return ' '
}

// folded cuts a line into rows of a screen.
func folded(line string, columns int) []string {
	var rows []string
	var row strings.Builder
	used := 0
	for _, letter := range line {
		width := 1
		if letter >= firstWide {
			width = 2
		}
		if used+width > columns && used > 0 {
			rows = append(rows, row.String())
			row.Reset()
			used = 0
		}
		row.WriteRune(letter)
		used += width
	}
	return append(rows, row.String())
}

// firstWide: from here on many letters take two columns. Taking all of them for wide folds too early, never too late.
const firstWide = 0x1100
