package messages

import (
	"fmt"
	"strings"
	"unicode"
)

// OnNewLines formats a text for an empty terminal: on separate lines, without control characters.
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

// Above formats a text for a terminal in use: it inserts lines above the cursor, so that input, drawings, cursor and
// colours stay. Terminals that cannot do so get new lines.
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
	// Make room below (scrolls at the bottom of the screen), go back up, save, insert, write, restore.
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

// folded splits a line into screen rows.
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

// firstWide: many characters from here on take two columns. Treating all of them as wide folds too early, never too
// late.
const firstWide = 0x1100
