package server

import (
	"bytes"
	"regexp"
	"strings"
)

const usualPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

var (
	// Locale and terminal variables. A client may set no others (LD_PRELOAD, PATH, GPU_DEV_*).
	fromClient = regexp.MustCompile(`^(LANG|LANGUAGE|LC_[A-Z]+|COLORTERM|TERM_PROGRAM|TERM_PROGRAM_VERSION|NO_COLOR)$`)
	// Variables that Kubernetes adds, and variables of our own process. Sessions get everything else that the image or the
	// pod has set.
	notForSessions = regexp.MustCompile(
		`^(KUBERNETES_.*|[A-Z0-9_]+_SERVICE_(HOST|PORT.*)|[A-Z0-9_]+_PORT_[0-9]+_(TCP|UDP|SCTP).*|` +
			`HOME|USER|LOGNAME|SHELL|TERM|PWD|OLDPWD|SHLVL|MAIL|_|SUDO_.*|SSH_.*|XDG_.*|` +
			`GODEBUG|GOGC|GOMEMLIMIT|GOMAXPROCS|GOTRACEBACK|DEBIAN_FRONTEND)$`)
	// Kubernetes also adds NAME_PORT, which only its value identifies.
	addressOfService = regexp.MustCompile(`^(tcp|udp|sctp)://`)
	variableName     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

const longestFromClient = 1024

// variables keep their order; the last value of a name counts.
type variables struct {
	names  []string
	values map[string]string
}

func newVariables() *variables { return &variables{values: map[string]string{}} }

func (v *variables) set(name, value string) {
	if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
		return // invalid in a process environment
	}
	if _, known := v.values[name]; !known {
		v.names = append(v.names, name)
	}
	v.values[name] = value
}

func (v *variables) list() []string {
	list := make([]string, len(v.names))
	for i, name := range v.names {
		list[i] = name + "=" + v.values[name]
	}
	return list
}

// takeContainer adds the variables of the image and the pod.
func (v *variables) takeContainer(environ []string) {
	for _, entry := range environ {
		name, value, ok := strings.Cut(entry, "=")
		isService := strings.HasSuffix(name, "_PORT") && addressOfService.MatchString(value)
		if ok && !isService && !notForSessions.MatchString(name) {
			v.set(name, value)
		}
	}
}

// takeFile adds NAME=value lines. A value is the rest of its line, unchanged: data, not a script.
func (v *variables) takeFile(lines []byte) {
	for line := range bytes.Lines(lines) {
		name, value, ok := strings.Cut(strings.TrimSuffix(string(line), "\n"), "=")
		if ok && variableName.MatchString(name) {
			v.set(name, value)
		}
	}
}

// takeRecords adds NAME=value records that end with a NUL, so that a value may have several lines.
func (v *variables) takeRecords(records []byte) {
	for record := range bytes.SplitSeq(records, []byte{0}) {
		name, value, ok := strings.Cut(string(record), "=")
		if ok && variableName.MatchString(name) {
			v.set(name, value)
		}
	}
}

// FromFile returns one variable of an environment file; empty if it is missing.
func FromFile(lines []byte, name string) string {
	all := newVariables()
	all.takeFile(lines)
	return all.values[name]
}

func isAllowedFromClient(name, value string) bool {
	return fromClient.MatchString(name) && len(value) <= longestFromClient && !strings.Contains(value, "\x00")
}
