package server

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"gpudev/devserver/internal/jupyter"
	"gpudev/devserver/internal/process"
)

const (
	// jupyterLogin: under this name the control plane comes, with a key for Jupyter alone.
	jupyterLogin = "jupyter"
	jupyterLog   = ".cache/gpu-dev/jupyter.log"
)

// visitor is who has logged in, and what for.
type visitor struct {
	rights rights
	key    ssh.PublicKey
	// isMember: another member of the gang, who is on no list.
	isMember bool
	// isForJupyter: led to Jupyter, wherever it says that it wants to go.
	isForJupyter bool
}

type visitorKey struct{}

// SetKeys replaces the list of those who may log in, whatever the file says from now on, and sends away those who are
// on it no longer.
func (server *Server) SetKeys(lines []byte) {
	server.mutex.Lock()
	server.keyLines = &lines
	var unwelcome []*connection
	for connection := range server.connections {
		who := connection.visitor
		if who.isMember || who.isForJupyter {
			continue
		}
		if _, known := findKey(lines, who.key, time.Now()); !known {
			unwelcome = append(unwelcome, connection)
		}
	}
	server.mutex.Unlock()
	for _, connection := range unwelcome {
		server.log.Info("connection.sent_away", "from", connection.socket.RemoteAddr().String())
		_ = connection.ssh.Close()
	}
}

func (server *Server) keys() []byte {
	server.mutex.Lock()
	defer server.mutex.Unlock()
	if server.keyLines != nil {
		return *server.keyLines
	}
	return readKeys(server.config.AuthorizedKeysPath)
}

func (server *Server) judgeForJupyter(offered ssh.PublicKey) (visitor, bool) {
	wanted, _, _, _, err := ssh.ParseAuthorizedKey([]byte(server.jupyter.PublicKey()))
	if err != nil || !bytes.Equal(wanted.Marshal(), offered.Marshal()) {
		return visitor{}, false
	}
	return visitor{key: offered, isForJupyter: true}, true
}

func (c *connection) openToJupyter(channel ssh.NewChannel) {
	if channel.ChannelType() != "direct-tcpip" {
		_ = channel.Reject(ssh.Prohibited, "there is nothing here but Jupyter")
		return
	}
	port := c.server.jupyter.Port()
	if port == 0 {
		_ = channel.Reject(ssh.ConnectionFailed, "Jupyter is not running")
		return
	}
	target, err := dialLoopback(port)
	join(channel, target, err)
}

// Jupyter is kept by the server: it knows whom sessions run as, and with what.
func (server *Server) Jupyter() *jupyter.Keeper { return server.jupyter }

func (server *Server) jupyterPlace() jupyter.Place {
	return jupyter.Place{
		Start:   server.startAsPerson,
		OpenLog: server.openJupyterLog,
		LogName: "~/" + jupyterLog,
		Home:    server.config.Home,
		IsRoot:  server.config.Identity.UID == 0,
	}
}

func (server *Server) openJupyterLog() (log *os.File, err error) {
	path := filepath.Join(server.config.Home, jupyterLog)
	err = server.config.Identity.Do(func() error {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		log, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
		return err
	})
	return log, err
}

// startAsPerson runs a login shell's command with what every session has.
func (server *Server) startAsPerson(
	script string, arguments []string, variables map[string]string, output *os.File,
) (*process.Child, error) {
	shell := server.config.Shell()
	all := server.config.environment(shell, newVariables(), true)
	for name, value := range variables {
		all.set(name, value)
	}
	nothing, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer nothing.Close()
	attributes := &syscall.ProcAttr{
		Dir:   server.config.Home,
		Env:   all.list(),
		Files: []uintptr{nothing.Fd(), output.Fd(), output.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true, Credential: server.config.Identity.Credential()},
	}
	argv := append([]string{filepath.Base(shell), "-lc", script, "gpu-dev-jupyter"}, arguments...)
	child, err := server.children.Start(shell, argv, attributes, false)
	if err != nil {
		return nil, fmt.Errorf("starting a shell: %w", err)
	}
	return child, nil
}
