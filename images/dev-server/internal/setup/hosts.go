package setup

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"time"
)

const (
	hostsFile    = "/etc/hosts"
	beginOfHosts = "# gpu-dev: the members of this reservation"
	endOfHosts   = "# gpu-dev: end"
	checkEvery   = 2 * time.Second
)

// KeepHosts keeps the lines of the file in /etc/hosts: the addresses of a gang's members are known only after all of
// them have started. It never returns.
func KeepHosts(path string, log *slog.Logger) {
	var before []byte
	for ; ; time.Sleep(checkEvery) {
		lines, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			lines, err = nil, nil
		}
		if err != nil || bytes.Equal(lines, before) {
			continue
		}
		before = lines
		if err := writeHosts(string(lines)); err != nil {
			log.Warn("hosts.not_written", "error", err)
		}
	}
}

// writeHosts writes in place: in a pod the file is a mount and cannot be replaced.
func writeHosts(lines string) error {
	text, err := readIfThere(hostsFile)
	if err != nil {
		return err
	}
	wanted := withHosts(text, lines)
	if wanted == text {
		return nil
	}
	return os.WriteFile(hostsFile, []byte(wanted), 0o644)
}

// withHosts returns the hosts file with our lines at its end, replacing earlier ones.
func withHosts(text, lines string) string {
	if before, rest, found := strings.Cut(text, beginOfHosts+"\n"); found {
		_, after, _ := strings.Cut(rest, endOfHosts+"\n")
		text = before + after
	}
	if strings.TrimSpace(lines) == "" {
		return text
	}
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text + beginOfHosts + "\n" + strings.TrimSpace(lines) + "\n" + endOfHosts + "\n"
}
