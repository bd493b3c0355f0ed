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
	// jupyterLogin is the username of the control plane, whose key opens only Jupyter.
	jupyterLogin = "jupyter"
	jupyterLog   = ".cache/gpu-dev/jupyter.log"
)

// client is an authenticated client and its permissions.
type client struct {
	rights rights
	key    ssh.PublicKey
	// isMember: another member of the gang, which is not in authorized_keys.
	isMember bool
	// isForJupyter: every channel is connected to Jupyter, whatever target it names.
	isForJupyter bool
}

type clientKey struct{}

// SetKeys replaces the authorized keys, instead of the file from now on, and disconnects clients whose key is not
// among them.
func (server *Server) SetKeys(lines []byte) {
	server.mutex.Lock()
	server.keyLines = &lines
	var removed []*connection
	for connection := range server.connections {
		who := connection.client
		if who.isMember || who.isForJupyter {
			continue
		}
		if _, known := findKey(lines, who.key, time.Now()); !known {
			removed = append(removed, connection)
		}
	}
	server.mutex.Unlock()
	for _, connection := range removed {
		server.log.Info("connection.closed", "from", connection.socket.RemoteAddr().String())
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

func (server *Server) authenticateForJupyter(offered ssh.PublicKey) (client, bool) {
	wanted, _, _, _, err := ssh.ParseAuthorizedKey([]byte(server.jupyter.PublicKey()))
	if err != nil || !bytes.Equal(wanted.Marshal(), offered.Marshal()) {
		return client{}, false
	}
	return client{key: offered, isForJupyter: true}, true
}

func (c *connection) openToJupyter(channel ssh.NewChannel) {
	if channel.ChannelType() != "direct-tcpip" {
		_ = channel.Reject(ssh.Prohibited, "this login can only reach Jupyter")
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

// Jupyter returns the supervisor of Jupyter, which needs the identity and environment of sessions.
func (server *Server) Jupyter() *jupyter.Supervisor { return server.jupyter }

func (server *Server) jupyterHost() jupyter.Host {
	return jupyter.Host{
		Start:   server.startAsUser,
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
		// O_NONBLOCK: a named pipe in its place would keep Jupyter starting for ever.
		flags := os.O_WRONLY | os.O_CREATE | os.O_TRUNC | unix.O_NOFOLLOW | unix.O_NONBLOCK
		log, err = os.OpenFile(path, flags, 0o600)
		return err
	})
	return log, err
}

// startAsUser runs a command in a login shell with the environment of a session.
func (server *Server) startAsUser(
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
