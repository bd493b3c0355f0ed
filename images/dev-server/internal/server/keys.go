package server

import (
	"bytes"
	"os"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// rights are the permissions of one key; the zero value can only run a command.
type rights struct {
	pty, forwarding, agent bool
	// untouched: a security key works without a touch.
	untouched bool
	// command replaces the client's command; empty: none does.
	command string
}

func allRights() rights { return rights{pty: true, forwarding: true, agent: true} }

// findKey looks up the offered key in the lines of an authorized_keys file. Invalid lines, and lines with unknown
// options, are ignored.
func findKey(lines []byte, offered ssh.PublicKey, now time.Time) (rights, bool) {
	wanted := offered.Marshal()
	for line := range bytes.Lines(lines) {
		key, _, options, _, err := ssh.ParseAuthorizedKey(line)
		if err != nil || !bytes.Equal(key.Marshal(), wanted) {
			continue
		}
		if granted, ok := grantedBy(options, now); ok {
			return granted, true
		}
	}
	return rights{}, false
}

func grantedBy(options []string, now time.Time) (rights, bool) {
	granted := allRights()
	for _, option := range options {
		name, value, _ := strings.Cut(option, "=")
		switch strings.ToLower(name) {
		case "restrict":
			granted = rights{command: granted.command}
		case "pty", "no-pty":
			granted.pty = !strings.HasPrefix(name, "no-")
		case "port-forwarding", "no-port-forwarding":
			granted.forwarding = !strings.HasPrefix(name, "no-")
		case "agent-forwarding", "no-agent-forwarding":
			granted.agent = !strings.HasPrefix(name, "no-")
		case "x11-forwarding", "no-x11-forwarding", "user-rc", "no-user-rc":
			// not supported here
		case "no-touch-required":
			granted.untouched = true
		case "command":
			granted.command = unquoted(value)
		case "expiry-time":
			until, ok := parseExpiry(unquoted(value))
			if !ok || !now.Before(until) {
				return rights{}, false
			}
		default:
			return rights{}, false
		}
	}
	return granted, true
}

func unquoted(value string) string {
	if len(value) >= 2 && value[0] == '"' && value[len(value)-1] == '"' {
		value = value[1 : len(value)-1]
	}
	return strings.ReplaceAll(value, `\"`, `"`)
}

// parseExpiry parses OpenSSH's format: YYYYMMDD[HHMM[SS]], with Z for UTC.
func parseExpiry(text string) (time.Time, bool) {
	digits, inUTC := strings.CutSuffix(text, "Z")
	zone := time.Local
	if inUTC {
		zone = time.UTC
	}
	for _, layout := range []string{"20060102", "200601021504", "20060102150405"} {
		if len(layout) == len(digits) {
			until, err := time.ParseInLocation(layout, digits, zone)
			return until, err == nil
		}
	}
	return time.Time{}, false
}

// readKeys reads the current file; a missing or unreadable one has no keys.
func readKeys(path string) []byte {
	lines, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return lines
}
