// Package server is the SSH server: who may log in, and what a connection may ask for. Whom sessions run as, and what
// the system around them looks like, it is told.
package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"gpudev/devserver/internal/jupyter"
	"gpudev/devserver/internal/messages"
	"gpudev/devserver/internal/process"
)

const (
	// The client says when it stops reading (`ssh host yes | head -1`) only to servers of this name.
	version         = "SSH-2.0-OpenSSH_9.2 gpu-dev"
	mostLoggingIn   = 500 // far more than a crowd that comes at once
	mostKeysOffered = 30  // people's agents hold many
	keepalivesLost  = 10
)

// Config is what the server is told.
type Config struct {
	HostKey ssh.Signer
	// AuthorizedKeysPath, EnvironmentPath, OwnVariablesPath and GreetingPath are read anew for every login or session.
	AuthorizedKeysPath string
	EnvironmentPath    string
	// OwnVariablesPath has the owner's, NAME=value records that end with a NUL; the system's are stronger.
	OwnVariablesPath string
	GreetingPath     string
	// MeshKey may log in, too: it is the other members' of a gang. Nil for one alone.
	MeshKey    ssh.PublicKey
	Username   string
	Home       string
	RuntimeDir string
	Identity   process.Identity
	// Shell is asked at every login.
	Shell     func() string
	LoginTime time.Duration
	// Keepalive is after how long a silence the client is asked whether it is there; ten times in vain: gone.
	Keepalive time.Duration
}

// Server serves until it is closed.
type Server struct {
	config   Config
	children *process.Children
	board    *messages.Board
	log      *slog.Logger

	mutex       sync.Mutex
	waiting     []net.Conn // not logged in yet, oldest first
	connections map[*connection]struct{}
	keyLines    *[]byte // nil: those of the file
	jupyter     *jupyter.Keeper
}

// New makes a server; Serve has it listen.
func New(config Config, children *process.Children, board *messages.Board, log *slog.Logger) *Server {
	server := &Server{
		config: config, children: children, board: board, log: log, connections: map[*connection]struct{}{},
	}
	server.jupyter = jupyter.NewKeeper(server.jupyterPlace(), log)
	return server
}

// Serve takes connections until the listener is closed.
func (server *Server) Serve(listener net.Listener) error {
	for {
		socket, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			server.log.Warn("connection.not_taken", "error", err)
			time.Sleep(100 * time.Millisecond) // no descriptor to be had, most likely
			continue
		}
		go server.welcome(&watchedConn{Conn: socket})
	}
}

// CloseConnections sends everybody away.
func (server *Server) CloseConnections() {
	server.mutex.Lock()
	defer server.mutex.Unlock()
	for connection := range server.connections {
		_ = connection.ssh.Close()
	}
	for _, socket := range server.waiting {
		_ = socket.Close()
	}
}

func (server *Server) welcome(socket *watchedConn) {
	server.beganToLogIn(socket)
	_ = socket.SetDeadline(time.Now().Add(server.config.LoginTime))
	connected, channels, requests, err := ssh.NewServerConn(socket, server.sshConfig())
	server.stoppedLoggingIn(socket)
	if err != nil {
		_ = socket.Close()
		if socket.hasSpoken() { // a probe that only connects is no news
			server.log.Info("login.failed", "from", socket.RemoteAddr().String(), "error", err)
		}
		return
	}
	_ = socket.SetDeadline(time.Time{})
	socket.isLoggedIn.Store(true)
	who, _ := connected.Permissions.ExtraData[visitorKey{}].(visitor)
	server.log.Info("login.accepted", "from", socket.RemoteAddr().String(), "key", connected.Permissions.Extensions["key"])
	newConnection(server, connected, socket, who).run(channels, requests)
}

// beganToLogIn counts those who have not logged in yet. They are few: the oldest makes room for a new one, so that
// somebody who only holds connections open keeps nobody out.
func (server *Server) beganToLogIn(socket net.Conn) {
	server.mutex.Lock()
	defer server.mutex.Unlock()
	if len(server.waiting) >= mostLoggingIn {
		_ = server.waiting[0].Close()
		server.waiting = server.waiting[1:]
	}
	server.waiting = append(server.waiting, socket)
}

func (server *Server) stoppedLoggingIn(socket net.Conn) {
	server.mutex.Lock()
	defer server.mutex.Unlock()
	for i, other := range server.waiting {
		if other == socket {
			server.waiting = append(server.waiting[:i], server.waiting[i+1:]...)
			return
		}
	}
}

var errNotWelcome = errors.New("not welcome")

func (server *Server) sshConfig() *ssh.ServerConfig {
	config := &ssh.ServerConfig{
		Config: ssh.Config{
			Rand: rand.Reader,
			// chacha20-poly1305, which OpenSSH would otherwise choose, is several times slower in Go.
			Ciphers: []string{
				ssh.CipherAES128GCM, ssh.CipherAES256GCM, ssh.CipherAES256CTR, ssh.CipherAES192CTR, ssh.CipherAES128CTR,
			},
		},
		ServerVersion: version,
		MaxAuthTries:  mostKeysOffered,
		PublicKeyAuthAlgorithms: []string{
			ssh.KeyAlgoED25519, ssh.KeyAlgoSKED25519, ssh.KeyAlgoSKECDSA256,
			ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256,
		},
		PublicKeyCallback: server.judge,
	}
	config.AddHostKey(server.config.HostKey)
	return config
}

func (server *Server) judge(who ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
	found, known := visitor{key: key}, false
	switch who.User() {
	case server.config.Username:
		found.rights, known = findKey(server.keys(), key, time.Now())
		if server.config.MeshKey != nil && string(server.config.MeshKey.Marshal()) == string(key.Marshal()) {
			found.rights, found.isMember, known = allRights(), true, true
		}
	case jupyterLogin:
		found, known = server.judgeForJupyter(key)
	default:
		return nil, fmt.Errorf("%w: only %s may log in", errNotWelcome, server.config.Username)
	}
	if !known {
		return nil, fmt.Errorf("%w: key %s", errNotWelcome, ssh.FingerprintSHA256(key))
	}
	permissions := &ssh.Permissions{
		Extensions: map[string]string{"key": ssh.FingerprintSHA256(key)},
		ExtraData:  map[any]any{visitorKey{}: found},
	}
	if found.rights.untouched {
		permissions.Extensions["no-touch-required"] = "" // the library looks for it
	}
	return permissions, nil
}

// Listen opens the port on every address.
func Listen(host string, port int) (net.Listener, error) {
	var settings net.ListenConfig
	settings.SetMultipathTCP(false)
	listener, err := settings.Listen(context.Background(), "tcp", net.JoinHostPort(host, fmt.Sprint(port)))
	if errors.Is(err, os.ErrPermission) {
		return nil, fmt.Errorf("listening on port %d, which only root may do here (choose another with --port): %w", port, err)
	}
	return listener, err
}
