// Package server is the SSH server: authentication, and the requests of a connection. Its configuration says as whom
// sessions run.
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
	// Clients report that they stopped reading (`ssh host yes | head -1`) only to servers of this name.
	version         = "SSH-2.0-OpenSSH_9.2 gpu-dev"
	mostLoggingIn   = 500 // far more than log in at once
	mostKeysOffered = 30  // users' agents hold many
	keepalivesLost  = 10
)

// Config is the configuration of a server.
type Config struct {
	HostKey ssh.Signer
	// AuthorizedKeysPath, EnvironmentPath, OwnVariablesPath and GreetingPath are read at every login or session.
	AuthorizedKeysPath string
	EnvironmentPath    string
	// OwnVariablesPath has the owner's variables, NAME=value records that end with a NUL; the system's override them.
	OwnVariablesPath string
	GreetingPath     string
	// MeshKey is the key of the other members of a gang, who may log in too. Nil without a gang.
	MeshKey    ssh.PublicKey
	Username   string
	Home       string
	RuntimeDir string
	Identity   process.Identity
	// Shell is called at every login.
	Shell     func() string
	LoginTime time.Duration
	// Keepalive is the silence after which the client gets a keepalive request; after ten unanswered ones it is gone.
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
	jupyter     *jupyter.Supervisor
}

// New creates a server; Serve accepts connections.
func New(config Config, children *process.Children, board *messages.Board, log *slog.Logger) *Server {
	server := &Server{
		config: config, children: children, board: board, log: log, connections: map[*connection]struct{}{},
	}
	server.jupyter = jupyter.NewSupervisor(server.jupyterHost(), log)
	return server
}

// Serve accepts connections until the listener is closed.
func (server *Server) Serve(listener net.Listener) error {
	for {
		socket, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			server.log.Warn("connection.not_accepted", "error", err)
			time.Sleep(100 * time.Millisecond) // most likely out of descriptors
			continue
		}
		go server.handshake(&watchedConn{Conn: socket})
	}
}

// CloseConnections closes all connections.
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

func (server *Server) handshake(socket *watchedConn) {
	server.beganToLogIn(socket)
	_ = socket.SetDeadline(time.Now().Add(server.config.LoginTime))
	connected, channels, requests, err := ssh.NewServerConn(socket, server.sshConfig())
	server.stoppedLoggingIn(socket)
	if err != nil {
		_ = socket.Close()
		if socket.hasSpoken() { // do not log probes that only connect
			server.log.Info("login.failed", "from", socket.RemoteAddr().String(), "error", err)
		}
		return
	}
	_ = socket.SetDeadline(time.Time{})
	socket.isLoggedIn.Store(true)
	who, _ := connected.Permissions.ExtraData[clientKey{}].(client)
	server.log.Info("login.accepted", "from", socket.RemoteAddr().String(), "key", connected.Permissions.Extensions["key"])
	newConnection(server, connected, socket, who).run(channels, requests)
}

// beganToLogIn limits connections that have not logged in yet. The oldest makes room for a new one, so that a client
// that only holds connections open blocks no other.
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

var errLoginRejected = errors.New("login rejected")

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
		PublicKeyCallback: server.authenticate,
	}
	config.AddHostKey(server.config.HostKey)
	return config
}

func (server *Server) authenticate(who ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
	found, known := client{key: key}, false
	switch who.User() {
	case server.config.Username:
		found.rights, known = findKey(server.keys(), key, time.Now())
		if server.config.MeshKey != nil && string(server.config.MeshKey.Marshal()) == string(key.Marshal()) {
			found.rights, found.isMember, known = allRights(), true, true
		}
	case jupyterLogin:
		found, known = server.authenticateForJupyter(key)
	default:
		return nil, fmt.Errorf("%w: only %s may log in", errLoginRejected, server.config.Username)
	}
	if !known {
		return nil, fmt.Errorf("%w: key %s", errLoginRejected, ssh.FingerprintSHA256(key))
	}
	permissions := &ssh.Permissions{
		Extensions: map[string]string{"key": ssh.FingerprintSHA256(key)},
		ExtraData:  map[any]any{clientKey{}: found},
	}
	if found.rights.untouched {
		permissions.Extensions["no-touch-required"] = "" // the library checks it
	}
	return permissions, nil
}

// Listen opens the port on every address.
func Listen(host string, port int) (net.Listener, error) {
	var settings net.ListenConfig
	settings.SetMultipathTCP(false)
	listener, err := settings.Listen(context.Background(), "tcp", net.JoinHostPort(host, fmt.Sprint(port)))
	if errors.Is(err, os.ErrPermission) {
		return nil, fmt.Errorf("listening on port %d, which needs root here (choose another with --port): %w", port, err)
	}
	return listener, err
}
