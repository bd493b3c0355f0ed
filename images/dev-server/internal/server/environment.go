package server

import (
	"bytes"
	"regexp"
	"strings"
)

const usualPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

var (
	// How the client's terminal speaks and looks. Anything else (LD_PRELOAD, PATH, GPU_DEV_*) is not for a client to set.
	fromClient = regexp.MustCompile(`^(LANG|LANGUAGE|LC_[A-Z]+|COLORTERM|TERM_PROGRAM|TERM_PROGRAM_VERSION|NO_COLOR)$`)
	// What Kubernetes puts into every container describes the cluster, and what describes our own process is not the
	// session's. Everything else the image or the pod has set is there for whoever works in it.
	notForSessions = regexp.MustCompile(
		`^(KUBERNETES_.*|[A-Z0-9_]+_SERVICE_(HOST|PORT.*)|[A-Z0-9_]+_PORT_[0-9]+_(TCP|UDP|SCTP).*|` +
			`HOME|USER|LOGNAME|SHELL|TERM|PWD|OLDPWD|SHLVL|MAIL|_|SUDO_.*|SSH_.*|XDG_.*|` +
			`GODEBUG|GOGC|GOMEMLIMIT|GOMAXPROCS|GOTRACEBACK|DEBIAN_FRONTEND)$`)
	// One of those names is like any other; its value gives it away.
	addressOfService = regexp.MustCompile(`^(tcp|udp|sctp)://`)
	variableName     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

const longestFromClient = 1024

// variables keep the order in which they came; the last of a name counts.
type variables struct {
	names  []string
	values map[string]string
}

func newVariables() *variables { return &variables{values: map[string]string{}} }

func (v *variables) set(name, value string) {
	if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
		return // a process cannot be given such a thing
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

// takeContainer takes over what the image and the pod have set for everybody.
func (v *variables) takeContainer(environ []string) {
	for _, entry := range environ {
		name, value, ok := strings.Cut(entry, "=")
		isService := strings.HasSuffix(name, "_PORT") && addressOfService.MatchString(value)
		if ok && !isService && !notForSessions.MatchString(name) {
			v.set(name, value)
		}
	}
}

// takeFile takes over NAME=value lines. A value is everything up to the end of its line, as it stands: data, no script.
func (v *variables) takeFile(lines []byte) {
	for line := range bytes.Lines(lines) {
		name, value, ok := strings.Cut(strings.TrimSuffix(string(line), "\n"), "=")
		if ok && variableName.MatchString(name) {
			v.set(name, value)
		}
	}
}

// takeRecords takes over NAME=value records that end with a NUL: a value may have several lines.
func (v *variables) takeRecords(records []byte) {
	for record := range bytes.SplitSeq(records, []byte{0}) {
		name, value, ok := strings.Cut(string(record), "=")
		if ok && variableName.MatchString(name) {
			v.set(name, value)
		}
	}
}

// FromFile finds one variable in the text of an environment file; empty where it is not there.
func FromFile(lines []byte, name string) string {
	all := newVariables()
	all.takeFile(lines)
	return all.values[name]
}

func welcomeFromClient(name, value string) bool {
	return fromClient.MatchString(name) && len(value) <= longestFromClient && !strings.Contains(value, "\x00")
}
