// Package jupyter keeps JupyterLab running as long as it is wanted: as the person, on the loopback address, on a port
// that nobody else has to know. What people do with it, and who may go there, is decided elsewhere.
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

// Wish is the Jupyter that is wanted.
type Wish struct {
	// Token is Jupyter's own: whoever has it may do everything there.
	Token string `json:"token"`
	// PublicKey is of whoever is let through to it.
	PublicKey string `json:"public_key"`
	// BaseURL is where people will find it: a path that begins and ends with a slash.
	BaseURL string `json:"base_url"`
}

// Seen is how it is.
type Seen struct {
	State  string `json:"state"`
	Reason string `json:"reason"`
}

// The states there are.
const (
	Starting = "starting"
	Ready    = "ready"
	Failed   = "failed"
)

const (
	missing = "there is no JupyterLab in this dev server; install it there (`pip install jupyterlab`, so that a login " +
		"shell finds `jupyter-lab`) or reserve with an image that has it, then enable Jupyter again"
	notThere = 127
	// All of it fixed text: what varies arrives as arguments and variables.
	script = `if command -v jupyter-lab >/dev/null 2>&1; then exec jupyter-lab "$@"; fi; ` +
		`if python3 -c 'import jupyterlab' 2>/dev/null; then exec python3 -m jupyterlab "$@"; fi; exit 127`
	tries        = 3
	lookAgain    = 250 * time.Millisecond
	readyWithin  = 90 * time.Second
	answerWithin = 5 * time.Second
	livedWell    = time.Minute
	endWithin    = 5 * time.Second
	logTail      = 2048
	longestWord  = 200
)

// Place is where it runs, as the SSH server knows it.
type Place struct {
	// Start runs a login shell's command as the person.
	Start func(script string, arguments []string, variables map[string]string, output *os.File) (*process.Child, error)
	// OpenLog opens the log, empty, with the person's own rights.
	OpenLog func() (*os.File, error)
	// LogName is what the person calls it.
	LogName string
	Home    string
	IsRoot  bool
}

// Keeper has one Jupyter, or none.
type Keeper struct {
	place Place
	log   *slog.Logger

	mutex sync.Mutex
	wish  *Wish
	seen  Seen
	port  int
	stop  chan struct{}
	done  chan struct{}
}

// NewKeeper keeps none yet.
func NewKeeper(place Place, log *slog.Logger) *Keeper { return &Keeper{place: place, log: log} }

// Want says which Jupyter shall run; nil for none. The same again changes nothing, unless it has failed.
func (keeper *Keeper) Want(wish *Wish) {
	keeper.mutex.Lock()
	defer keeper.mutex.Unlock()
	if same(keeper.wish, wish) {
		return
	}
	before := keeper.done
	if keeper.stop != nil {
		close(keeper.stop)
	}
	keeper.wish, keeper.port, keeper.stop, keeper.done = wish, 0, nil, nil
	if wish != nil {
		keeper.seen = Seen{State: Starting}
		keeper.stop, keeper.done = make(chan struct{}), make(chan struct{})
		go keeper.keep(*wish, before, keeper.stop, keeper.done)
	}
}

// Seen tells how it is; nil where none is wanted.
func (keeper *Keeper) Seen() *Seen {
	keeper.mutex.Lock()
	defer keeper.mutex.Unlock()
	if keeper.wish == nil {
		return nil
	}
	seen := keeper.seen
	return &seen
}

// Port is where it answers; 0 while it does not.
func (keeper *Keeper) Port() int {
	keeper.mutex.Lock()
	defer keeper.mutex.Unlock()
	return keeper.port
}

// PublicKey is of whoever may go there; empty where none is wanted.
func (keeper *Keeper) PublicKey() string {
	keeper.mutex.Lock()
	defer keeper.mutex.Unlock()
	if keeper.wish == nil {
		return ""
	}
	return keeper.wish.PublicKey
}

func same(a, b *Wish) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// note changes what is told, unless something else is wanted by now.
func (keeper *Keeper) note(stop chan struct{}, seen Seen, port int) {
	keeper.mutex.Lock()
	defer keeper.mutex.Unlock()
	if keeper.stop == stop {
		keeper.seen, keeper.port = seen, port
	}
	keeper.log.Info("jupyter", "state", seen.State, "reason", seen.Reason)
}

func (keeper *Keeper) keep(wish Wish, before <-chan struct{}, stop, done chan struct{}) {
	defer close(done)
	if before != nil {
		<-before // what ran for the wish before has ended
	}
	failures := 0
	for {
		began := time.Now()
		reason, stopped := keeper.runOnce(wish, stop)
		if stopped {
			return
		}
		failures++
		if time.Since(began) > livedWell {
			failures = 0
		}
		if failures >= tries || reason == missing {
			keeper.note(stop, Seen{Failed, reason}, 0)
			return
		}
		keeper.note(stop, Seen{State: Starting}, 0)
		select {
		case <-stop:
			return
		case <-time.After(lookAgain << failures):
		}
	}
}

// runOnce runs it until it has ended, and says why it did; or until it is not wanted any more.
func (keeper *Keeper) runOnce(wish Wish, stop chan struct{}) (reason string, stopped bool) {
	port, err := freePort()
	if err != nil {
		return err.Error(), false
	}
	child, err := keeper.start(wish, port)
	if err != nil {
		return fmt.Sprintf("no process could be started: %v", err), false
	}
	defer end(child)
	deadline := time.After(readyWithin)
	for isReady := false; ; {
		var again <-chan time.Time
		if !isReady {
			if isReady = answers(wish, port); isReady {
				keeper.note(stop, Seen{State: Ready}, port)
				deadline = nil
			} else {
				again = time.After(lookAgain)
			}
		}
		select {
		case <-stop:
			return "", true
		case <-child.Done:
			return keeper.lastWords(child.Status), false
		case <-deadline:
			return fmt.Sprintf("it did not answer within %s%s", readyWithin, keeper.lastLine()), false
		case <-again:
		}
	}
}

func (keeper *Keeper) start(wish Wish, port int) (*process.Child, error) {
	output, err := keeper.place.OpenLog()
	if err != nil { // a home that is full or closed: Jupyter's own words will tell in the end
		if output, err = os.OpenFile(os.DevNull, os.O_WRONLY, 0); err != nil {
			return nil, err
		}
	}
	defer output.Close()
	// The token is no argument: those can be read by everybody.
	variables := map[string]string{"JUPYTER_TOKEN": wish.Token, "TERM": "xterm"}
	return keeper.place.Start(script, argumentsFor(wish, port, keeper.place), variables, output)
}

func argumentsFor(wish Wish, port int, place Place) []string {
	arguments := []string{
		"--no-browser",
		"--ServerApp.ip=127.0.0.1",
		fmt.Sprintf("--ServerApp.port=%d", port),
		"--ServerApp.port_retries=0",
		"--ServerApp.base_url=" + wish.BaseURL,
		"--ServerApp.root_dir=" + place.Home,
		"--ServerApp.open_browser=False",
		// It is reached through the control plane, under whatever name people know that by.
		"--ServerApp.allow_remote_access=True",
	}
	if place.IsRoot {
		arguments = append(arguments, "--ServerApp.allow_root=True")
	}
	return arguments
}

func (keeper *Keeper) lastWords(status unix.WaitStatus) string {
	switch {
	case status.Exited() && status.ExitStatus() == notThere:
		return missing
	case status.Signaled():
		return fmt.Sprintf("it was killed by signal %d%s", status.Signal(), keeper.lastLine())
	default:
		return fmt.Sprintf("it ended with exit code %d%s", status.ExitStatus(), keeper.lastLine())
	}
}

// lastLine of its log, as far as it can be shown to people.
func (keeper *Keeper) lastLine() string {
	log, err := os.Open(keeper.logPath())
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
		if shown != "" {
			last = shown
		}
	}
	if last == "" {
		return ""
	}
	if len(last) > longestWord {
		last = strings.ToValidUTF8(last[:longestWord], "")
	}
	return fmt.Sprintf(" (%s: %s)", keeper.place.LogName, last)
}

func (keeper *Keeper) logPath() string {
	return strings.Replace(keeper.place.LogName, "~", keeper.place.Home, 1)
}

func printable(letter rune) rune {
	if unicode.IsPrint(letter) {
		return letter
	}
	return ' '
}

func answers(wish Wish, port int) bool {
	connection, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), answerWithin)
	if err != nil {
		return false
	}
	defer connection.Close()
	_ = connection.SetDeadline(time.Now().Add(answerWithin))
	_, err = fmt.Fprintf(connection, "GET %sapi/status HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"+
		"Authorization: token %s\r\n\r\n", wish.BaseURL, wish.Token)
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
