package server

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"gpudev/devserver/internal/messages"
	"gpudev/devserver/internal/process"
	"gpudev/devserver/internal/terminal"
)

const cannotStart = 254

// session is one channel: a shell, a command or sftp, run as a child process whose descriptors are the channel. It ends
// when the child has ended *and* its output has been sent; either alone could lose data.
type session struct {
	connection *connection
	channel    ssh.Channel
	fromClient *variables

	kind    string
	command string

	started  bool
	terminal *terminal.Terminal
	term     string
	agent    string
	child    *process.Child

	// writing keeps messages out of the middle of a program's output.
	writing sync.Mutex
	// lost is closed when the client is gone; then the streams are abandoned.
	lost   chan struct{}
	output *os.File
}

func newSession(c *connection, channel ssh.Channel) *session {
	return &session{connection: c, channel: channel, fromClient: newVariables(), lost: make(chan struct{})}
}

// run handles requests until the channel is closed.
func (s *session) run(requests <-chan *ssh.Request) {
	for request := range requests {
		ok := s.handle(request)
		if request.WantReply {
			_ = request.Reply(ok, nil)
		}
		if ok && s.kind != "" && !s.started {
			s.started = true
			s.start()
		}
	}
	close(s.lost)
	if !s.started && s.terminal != nil { // never used
		_ = s.terminal.Master.Close()
		_ = s.terminal.Slave.Close()
	}
}

func (s *session) handle(request *ssh.Request) bool {
	switch request.Type {
	case "env":
		return s.takeVariable(request.Payload)
	case "pty-req":
		return s.openTerminal(request.Payload)
	case "auth-agent-req@openssh.com":
		return s.openAgent()
	case "shell", "exec", "subsystem":
		return !s.started && s.choose(request)
	case "window-change":
		return s.resize(request.Payload)
	case "signal":
		return s.signal(request.Payload)
	case "break":
		return s.child != nil && s.terminal != nil && terminal.Break(s.terminal.Master) == nil
	case "eow@openssh.com":
		if s.output != nil { // the client stopped reading: the child's next write fails
			_ = s.output.Close()
		}
		return true
	default:
		return false
	}
}

func (s *session) takeVariable(payload []byte) bool {
	var variable struct{ Name, Value string }
	if ssh.Unmarshal(payload, &variable) != nil || !isAllowedFromClient(variable.Name, variable.Value) {
		return false
	}
	s.fromClient.set(variable.Name, variable.Value)
	return true
}

type sizeRequest struct{ Columns, Rows, Width, Height uint32 }

func (s *session) openTerminal(payload []byte) bool {
	var options struct {
		Term                         string
		Columns, Rows, Width, Height uint32
		Modes                        string
	}
	if !s.connection.rights.pty || s.started || s.terminal != nil || ssh.Unmarshal(payload, &options) != nil {
		return false
	}
	size := terminal.Size{Columns: options.Columns, Rows: options.Rows, Width: options.Width, Height: options.Height}
	opened, err := terminal.Open(s.config().Identity.UID, size, []byte(options.Modes))
	if err != nil {
		s.connection.server.log.Warn("terminal.not_opened", "error", err)
		return false
	}
	s.terminal, s.term = opened, options.Term
	return true
}

func (s *session) openAgent() bool {
	if !s.connection.rights.agent {
		return false
	}
	path, err := s.connection.agentPath()
	if err != nil {
		s.connection.server.log.Warn("agent.not_forwarded", "error", err)
		return false
	}
	s.agent = path
	return true
}

func (s *session) choose(request *ssh.Request) bool {
	var options struct{ Text string }
	if request.Type != "shell" && ssh.Unmarshal(request.Payload, &options) != nil {
		return false
	}
	if request.Type == "subsystem" && options.Text != "sftp" {
		return false
	}
	if forced := s.connection.rights.command; forced != "" {
		s.kind, s.command = "exec", forced
		s.fromClient.set("SSH_ORIGINAL_COMMAND", options.Text)
		return true
	}
	s.kind, s.command = request.Type, options.Text
	return true
}

func (s *session) resize(payload []byte) bool {
	var size sizeRequest
	if s.terminal == nil || ssh.Unmarshal(payload, &size) != nil {
		return false
	}
	return terminal.Resize(s.terminal.Master, terminal.Size(size)) == nil
}

func (s *session) signal(payload []byte) bool {
	var options struct{ Name string }
	if s.child == nil || ssh.Unmarshal(payload, &options) != nil {
		return false
	}
	number, ok := portableSignals[options.Name]
	if ok {
		s.child.Signal(number)
	}
	return ok
}

func (s *session) config() *Config { return &s.connection.server.config }

// environment has the variables of the container, the client (few are allowed), the reservation and the session; later
// ones override earlier ones.
func (s *session) environment(shell string) []string {
	all := s.config().environment(shell, s.fromClient, s.kind == "shell")
	s.addFacts(all)
	return all.list()
}

// environment without the variables of one session. A login shell may lose the PATH of the image, so it is passed on.
func (config *Config) environment(shell string, fromClient *variables, isLogin bool) *variables {
	all := newVariables()
	all.set("HOME", config.Home)
	all.set("USER", config.Username)
	all.set("LOGNAME", config.Username)
	all.set("SHELL", shell)
	all.set("PATH", usualPath)
	all.set("LANG", "C.UTF-8")
	if config.RuntimeDir != "" {
		all.set("XDG_RUNTIME_DIR", config.RuntimeDir)
	}
	all.takeContainer(os.Environ())
	for _, name := range fromClient.names {
		all.set(name, fromClient.values[name])
	}
	if records, err := os.ReadFile(config.OwnVariablesPath); err == nil {
		all.takeRecords(records)
	}
	if lines, err := os.ReadFile(config.EnvironmentPath); err == nil {
		all.takeFile(lines)
	}
	if isLogin && all.values["PATH"] != usualPath {
		all.set("GPU_DEV_IMAGE_PATH", all.values["PATH"])
	}
	return all
}

func (s *session) addFacts(all *variables) {
	peer, peerOK := s.connection.socket.RemoteAddr().(*net.TCPAddr)
	here, hereOK := s.connection.socket.LocalAddr().(*net.TCPAddr)
	if peerOK && hereOK {
		all.set("SSH_CONNECTION", fmt.Sprintf("%s %d %s %d", peer.IP, peer.Port, here.IP, here.Port))
		all.set("SSH_CLIENT", fmt.Sprintf("%s %d %d", peer.IP, peer.Port, here.Port))
	}
	if s.agent != "" {
		all.set("SSH_AUTH_SOCK", s.agent)
	}
	if s.terminal != nil {
		all.set("SSH_TTY", s.terminal.Path)
		if s.term == "" {
			s.term = "dumb"
		}
		all.set("TERM", s.term)
	}
}

// greet shows the banner when a shell opens on a terminal.
func (s *session) greet() {
	hushed := s.config().Identity.Do(func() error {
		_, err := os.Lstat(filepath.Join(s.config().Home, ".hushlogin"))
		return err
	}) == nil
	if greeting, err := os.ReadFile(s.config().GreetingPath); err == nil && !hushed {
		_, _ = s.channel.Write([]byte(strings.ReplaceAll(string(greeting), "\n", "\r\n")))
	}
	_, _ = s.channel.Write(messages.OnNewLines(s.connection.server.board.Greeting(time.Now())))
}

func (s *session) exit(status unix.WaitStatus) {
	_ = s.channel.CloseWrite()
	if status.Signaled() {
		_, _ = s.channel.SendRequest("exit-signal", false, ssh.Marshal(struct {
			Name     string
			Core     bool
			Message  string
			Language string
		}{Name: signalName(status.Signal()), Core: status.CoreDump()}))
	} else {
		s.exitWith(uint32(status.ExitStatus()))
	}
	_ = s.channel.Close()
}

func (s *session) exitWith(code uint32) {
	_, _ = s.channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{code}))
}
