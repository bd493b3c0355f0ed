// Package jupyter supervises JupyterLab: it runs as the user, on the loopback address, on a port that only this process
// knows. Access to it is decided elsewhere.
package jupyter

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"gpudev/devserver/internal/process"
)

// Options describes the Jupyter to run.
type Options struct {
	// Token is Jupyter's own token, which gives full access.
	Token string `json:"token"`
	// PublicKey is the key of the client that may connect to it.
	PublicKey string `json:"public_key"`
	// BaseURL is its path, which begins and ends with a slash.
	BaseURL string `json:"base_url"`
}

// Status is the status of Jupyter.
type Status struct {
	State  string `json:"state"`
	Reason string `json:"reason"`
}

// The states.
const (
	Starting = "starting"
	Ready    = "ready"
	Failed   = "failed"
)

const (
	missing = "there is no JupyterLab in this dev server; `gpu-dev jupyter enable --install` installs it there " +
		"(or reserve with an image that has it)"
	notThere = 127
	// Fixed text: values are passed as arguments and variables.
	script = `if command -v jupyter-lab >/dev/null 2>&1; then exec jupyter-lab "$@"; fi; ` +
		`if python3 -c 'import jupyterlab' 2>/dev/null; then exec python3 -m jupyterlab "$@"; fi; ` +
		`own="$HOME/.local/share/gpu-dev/jupyter/bin/jupyter-lab"; if [ -x "$own" ]; then exec "$own" "$@"; fi; exit 127`
	ownLogLine   = "gpu-dev: "
	tries        = 3
	checkAgain   = 250 * time.Millisecond
	readyWithin  = 90 * time.Second
	answerWithin = 5 * time.Second
	livedWell    = time.Minute
	endWithin    = 5 * time.Second
	logTail      = 2048
	longestWord  = 200
)

// Host is what the SSH server provides to run it.
type Host struct {
	// Start runs a command in a login shell as the user.
	Start func(script string, arguments []string, variables map[string]string, output *os.File) (*process.Child, error)
	// OpenLog opens the empty log with the user's permissions.
	OpenLog func() (*os.File, error)
	// LogName is the path of the log as shown to the user.
	LogName string
	Home    string
	IsRoot  bool
}

// Supervisor runs one Jupyter, or none.
type Supervisor struct {
	host Host
	log  *slog.Logger

	mutex   sync.Mutex
	options *Options
	status  Status
	port    int
	stop    chan struct{}
	done    chan struct{}
}

// NewSupervisor creates a supervisor without a Jupyter.
func NewSupervisor(host Host, log *slog.Logger) *Supervisor { return &Supervisor{host: host, log: log} }

// Set sets the Jupyter to run; nil for none. Setting the same again changes nothing.
func (supervisor *Supervisor) Set(options *Options) {
	supervisor.mutex.Lock()
	defer supervisor.mutex.Unlock()
	if same(supervisor.options, options) {
		return
	}
	supervisor.log.Info("jupyter", "requested", options != nil)
	before := supervisor.done
	if supervisor.stop != nil {
		close(supervisor.stop)
	}
	supervisor.options, supervisor.port, supervisor.stop, supervisor.done = options, 0, nil, nil
	if options != nil {
		supervisor.status = Status{State: Starting}
		supervisor.stop, supervisor.done = make(chan struct{}), make(chan struct{})
		go supervisor.keep(*options, before, supervisor.stop, supervisor.done)
	}
}

// Status returns the status; nil if none should run.
func (supervisor *Supervisor) Status() *Status {
	supervisor.mutex.Lock()
	defer supervisor.mutex.Unlock()
	if supervisor.options == nil {
		return nil
	}
	status := supervisor.status
	return &status
}

// Port is the port of a ready Jupyter; 0 while it is not ready.
func (supervisor *Supervisor) Port() int {
	supervisor.mutex.Lock()
	defer supervisor.mutex.Unlock()
	return supervisor.port
}

// PublicKey is the key of the client that may connect; empty if no Jupyter should run.
func (supervisor *Supervisor) PublicKey() string {
	supervisor.mutex.Lock()
	defer supervisor.mutex.Unlock()
	if supervisor.options == nil {
		return ""
	}
	return supervisor.options.PublicKey
}

func same(a, b *Options) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// note records the status, unless the desired state has changed since.
func (supervisor *Supervisor) note(stop chan struct{}, status Status, port int) {
	supervisor.mutex.Lock()
	defer supervisor.mutex.Unlock()
	if supervisor.stop == stop {
		supervisor.status, supervisor.port = status, port
	}
	supervisor.log.Info("jupyter", "state", status.State, "reason", status.Reason)
}

func (supervisor *Supervisor) keep(options Options, before <-chan struct{}, stop, done chan struct{}) {
	defer close(done)
	if before != nil {
		<-before // until the previous Jupyter has ended
	}
	failures := 0
	for {
		began := time.Now()
		reason, stopped := supervisor.runOnce(options, stop)
		if stopped {
			return
		}
		failures++
		if time.Since(began) > livedWell {
			failures = 0
		}
		if failures >= tries || reason == missing {
			supervisor.note(stop, Status{Failed, reason}, 0)
			return
		}
		supervisor.note(stop, Status{State: Starting}, 0)
		select {
		case <-stop:
			return
		case <-time.After(checkAgain << failures):
		}
	}
}

// runOnce runs it until it ends, and returns the reason, or until it is stopped.
func (supervisor *Supervisor) runOnce(options Options, stop chan struct{}) (reason string, stopped bool) {
	port, err := freePort()
	if err != nil {
		return err.Error(), false
	}
	child, err := supervisor.start(options, port)
	if err != nil {
		return fmt.Sprintf("no process could be started: %v", err), false
	}
	defer end(child)
	deadline := time.After(readyWithin)
	for isReady := false; ; {
		var again <-chan time.Time
		if !isReady {
			if isReady = answers(options, port); isReady {
				supervisor.note(stop, Status{State: Ready}, port)
				deadline = nil
			} else {
				again = time.After(checkAgain)
			}
		}
		select {
		case <-stop:
			return "", true
		case <-child.Done:
			return supervisor.lastWords(child.Status), false
		case <-deadline:
			return fmt.Sprintf("it did not answer within %s%s", readyWithin, supervisor.lastLine()), false
		case <-again:
		}
	}
}

func (supervisor *Supervisor) start(options Options, port int) (*process.Child, error) {
	output, err := supervisor.host.OpenLog()
	if err != nil { // a full or inaccessible home: Jupyter reports it itself
		if output, err = os.OpenFile(os.DevNull, os.O_WRONLY, 0); err != nil {
			return nil, err
		}
	}
	defer output.Close()
	_, _ = fmt.Fprintf(output, "%sstarting JupyterLab\n", ownLogLine)
	// The token is not an argument, because all users can read arguments.
	variables := map[string]string{"JUPYTER_TOKEN": options.Token, "TERM": "xterm"}
	return supervisor.host.Start(script, argumentsFor(options, port, supervisor.host), variables, output)
}

func argumentsFor(options Options, port int, host Host) []string {
	arguments := []string{
		"--no-browser",
		"--ServerApp.ip=127.0.0.1",
		fmt.Sprintf("--ServerApp.port=%d", port),
		"--ServerApp.port_retries=0",
		"--ServerApp.base_url=" + options.BaseURL,
		"--ServerApp.root_dir=" + host.Home,
		"--ServerApp.open_browser=False",
		// It is reached through the control plane, under any host name.
		"--ServerApp.allow_remote_access=True",
	}
	if host.IsRoot {
		arguments = append(arguments, "--ServerApp.allow_root=True")
	}
	return arguments
}

func (supervisor *Supervisor) lastWords(status unix.WaitStatus) string {
	switch {
	case status.Exited() && status.ExitStatus() == notThere:
		return missing
	case status.Signaled():
		return fmt.Sprintf("it was killed by signal %d%s", status.Signal(), supervisor.lastLine())
	default:
		return fmt.Sprintf("it ended with exit code %d%s", status.ExitStatus(), supervisor.lastLine())
	}
}

// lastLine returns the last line of its log, printable and bounded.
func (supervisor *Supervisor) lastLine() string {
	log, err := os.OpenFile(supervisor.logPath(), os.O_RDONLY|unix.O_NONBLOCK, 0) // not to wait at a named pipe
	if err != nil {
		return ""
	}
	defer log.Close()
	if info, err := log.Stat(); err != nil || !info.Mode().IsRegular() {
		return ""
	} else if info.Size() > logTail {
		_, _ = log.Seek(-logTail, io.SeekEnd)
	}
	text, _ := io.ReadAll(io.LimitReader(log, logTail))
	last := ""
	for line := range bytes.Lines(text) {
		shown := strings.TrimSpace(strings.Map(printable, string(line)))
		if shown != "" && !strings.HasPrefix(shown, ownLogLine) {
			last = shown
		}
	}
	if last == "" {
		return ""
	}
	if len(last) > longestWord {
		last = strings.ToValidUTF8(last[:longestWord], "")
	}
	return fmt.Sprintf(" (%s: %s)", supervisor.host.LogName, last)
}

func (supervisor *Supervisor) logPath() string {
	return strings.Replace(supervisor.host.LogName, "~", supervisor.host.Home, 1)
}

func printable(letter rune) rune {
	if unicode.IsPrint(letter) {
		return letter
	}
	return ' '
}

func answers(options Options, port int) bool {
	connection, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), answerWithin)
	if err != nil {
		return false
	}
	defer connection.Close()
	_ = connection.SetDeadline(time.Now().Add(answerWithin))
	_, err = fmt.Fprintf(connection, "GET %sapi/status HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"+
		"Authorization: token %s\r\n\r\n", options.BaseURL, options.Token)
	if err != nil {
		return false
	}
	line, err := bufio.NewReader(connection).ReadString('\n')
	return err == nil && strings.Contains(line, " 200 ")
}

func end(child *process.Child) {
	for _, number := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		child.Signal(number)
		select {
		case <-child.Done:
			return
		case <-time.After(endWithin):
		}
	}
}

func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}
