package server

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
)

// connection is one authenticated client: any number of sessions and forwardings.
type connection struct {
	server *Server
	ssh    *ssh.ServerConn
	socket *watchedConn
	client

	mutex     sync.Mutex
	agent     *agent
	listeners map[string]net.Listener
}

func newConnection(server *Server, connected *ssh.ServerConn, socket *watchedConn, who client) *connection {
	return &connection{
		server: server, ssh: connected, socket: socket, client: who, listeners: map[string]net.Listener{},
	}
}

func (c *connection) run(channels <-chan ssh.NewChannel, requests <-chan *ssh.Request) {
	c.server.mutex.Lock()
	c.server.connections[c] = struct{}{}
	c.server.mutex.Unlock()
	gone := make(chan struct{})
	go c.answer(requests)
	go c.keepAlive(gone)
	for channel := range channels {
		c.open(channel)
	}
	close(gone)
	c.close()
	c.server.mutex.Lock()
	delete(c.server.connections, c)
	c.server.mutex.Unlock()
	_ = c.ssh.Close()
	c.server.log.Info("connection.ended", "from", c.socket.RemoteAddr().String())
}

func (c *connection) open(channel ssh.NewChannel) {
	if c.isForJupyter {
		go c.openToJupyter(channel)
		return
	}
	switch channel.ChannelType() {
	case "session":
		if opened, requests, err := channel.Accept(); err == nil {
			go newSession(c, opened).run(requests)
		}
	case "direct-tcpip":
		go c.forwardTCP(channel)
	case "direct-streamlocal@openssh.com":
		go c.forwardPath(channel)
	default:
		_ = channel.Reject(ssh.UnknownChannelType, "unknown channel type")
	}
}

func (c *connection) answer(requests <-chan *ssh.Request) {
	for request := range requests {
		ok, payload := c.handle(request)
		if request.WantReply {
			_ = request.Reply(ok, payload)
		}
	}
}

func (c *connection) handle(request *ssh.Request) (bool, []byte) {
	if c.isForJupyter {
		return false, nil
	}
	switch request.Type {
	case "tcpip-forward":
		return c.listenTCP(request.Payload)
	case "cancel-tcpip-forward":
		return c.cancelTCP(request.Payload), nil
	case "streamlocal-forward@openssh.com":
		return c.listenPath(request.Payload), nil
	case "cancel-streamlocal-forward@openssh.com":
		return c.cancelPath(request.Payload), nil
	default: // such as a keepalive: any reply will do
		return false, nil
	}
}

// keepAlive sends a keepalive request to a silent client. One at a time is enough: it stays unanswered as long as the
// client is away.
func (c *connection) keepAlive(gone <-chan struct{}) {
	ticker := time.NewTicker(c.server.config.Keepalive)
	defer ticker.Stop()
	var asking atomic.Bool
	for {
		select {
		case <-gone:
			return
		case <-ticker.C:
		}
		silence := c.socket.silence()
		if silence > keepalivesLost*c.server.config.Keepalive {
			c.server.log.Info("connection.given_up", "from", c.socket.RemoteAddr().String())
			_ = c.socket.Close()
			return
		}
		if silence >= c.server.config.Keepalive && asking.CompareAndSwap(false, true) {
			go func() {
				_, _, _ = c.ssh.SendRequest("keepalive@openssh.com", true, nil)
				asking.Store(false)
			}()
		}
	}
}

func (c *connection) close() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, listener := range c.listeners {
		_ = listener.Close()
	}
	c.listeners = nil
	if c.agent != nil {
		c.agent.close()
	}
}

// watchedConn records when the client last sent data.
type watchedConn struct {
	net.Conn
	lastHeard  atomic.Int64
	isLoggedIn atomic.Bool
}

func (conn *watchedConn) Read(buffer []byte) (int, error) {
	if !conn.isLoggedIn.Load() {
		conn.acknowledgeAtOnce()
	}
	count, err := conn.Conn.Read(buffer)
	if count > 0 {
		conn.lastHeard.Store(time.Now().UnixNano())
	}
	return count, err
}

// acknowledgeAtOnce: until it is logged in, OpenSSH's client waits for the kernel's delayed acknowledgement (40 ms)
// between two of its packets. The option has to be set again for every one.
func (conn *watchedConn) acknowledgeAtOnce() {
	tcp, ok := conn.Conn.(*net.TCPConn)
	if !ok {
		return
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1)
		})
	}
}

func (conn *watchedConn) hasSpoken() bool { return conn.lastHeard.Load() != 0 }

func (conn *watchedConn) silence() time.Duration {
	return time.Duration(time.Now().UnixNano() - conn.lastHeard.Load())
}
