package server

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
)

const (
	loopback    = "127.0.0.1"
	connectTime = 60 * time.Second
)

// RFC 4254, section 7, and OpenSSH's PROTOCOL, section 2.4.
type (
	directTCP struct {
		Host       string
		Port       uint32
		OriginHost string
		OriginPort uint32
	}
	directPath struct {
		Path     string
		Reserved string
		Unused   uint32
	}
	listenTCP struct {
		Host string
		Port uint32
	}
	listenPath    struct{ Path string }
	allocatedPort struct{ Port uint32 }
	forwardedTCP  struct {
		Host       string
		Port       uint32
		OriginHost string
		OriginPort uint32
	}
	forwardedPath struct {
		Path     string
		Reserved string
	}
)

// forwardTCP connects to the target of -L, -D or -W.
func (c *connection) forwardTCP(channel ssh.NewChannel) {
	var options directTCP
	if !c.rights.forwarding || ssh.Unmarshal(channel.ExtraData(), &options) != nil {
		_ = channel.Reject(ssh.Prohibited, "forwarding is not allowed")
		return
	}
	target, err := newDialer().Dial("tcp", net.JoinHostPort(options.Host, strconv.Itoa(int(options.Port))))
	if errors.Is(err, errClosed) {
		_ = channel.Reject(ssh.Prohibited, errClosed.Error())
		return
	}
	join(channel, target, err)
}

func dialLoopback(port int) (net.Conn, error) {
	return net.DialTimeout("tcp", net.JoinHostPort(loopback, strconv.Itoa(port)), connectTime)
}

// forwardPath connects to a unix socket with the user's permissions, so that the peer sees their uid.
func (c *connection) forwardPath(channel ssh.NewChannel) {
	var options directPath
	if !c.rights.forwarding || ssh.Unmarshal(channel.ExtraData(), &options) != nil {
		_ = channel.Reject(ssh.Prohibited, "forwarding is not allowed")
		return
	}
	var target net.Conn
	err := c.server.config.Identity.Do(func() (err error) {
		target, err = net.DialUnix("unix", nil, fileAddress(options.Path))
		return err
	})
	join(channel, target, err)
}

func join(channel ssh.NewChannel, target net.Conn, err error) {
	if err != nil {
		_ = channel.Reject(ssh.ConnectionFailed, err.Error())
		return
	}
	opened, requests, err := channel.Accept()
	if err != nil {
		_ = target.Close()
		return
	}
	go ssh.DiscardRequests(requests)
	carry(opened, target)
}

// listenTCP opens a port that forwards to the client (-R). It is always bound to the loopback address.
func (c *connection) listenTCP(payload []byte) (bool, []byte) {
	var options listenTCP
	if !c.rights.forwarding || ssh.Unmarshal(payload, &options) != nil || options.Port > 65535 {
		return false, nil
	}
	var listener net.Listener
	err := c.server.config.Identity.Do(func() (err error) {
		listener, err = net.ListenTCP("tcp4", &net.TCPAddr{IP: net.ParseIP(loopback), Port: int(options.Port)})
		return err
	})
	if err != nil {
		return false, nil
	}
	port := uint32(listener.Addr().(*net.TCPAddr).Port)
	if !c.keep(tcpName(options.Host, port), listener) {
		return false, nil
	}
	go c.takeIn(listener, "forwarded-tcpip", func(from net.Conn) []byte {
		forwarded := forwardedTCP{Host: options.Host, Port: port}
		if origin, ok := from.RemoteAddr().(*net.TCPAddr); ok {
			forwarded.OriginHost, forwarded.OriginPort = origin.IP.String(), uint32(origin.Port)
		}
		return ssh.Marshal(forwarded)
	})
	if options.Port == 0 {
		return true, ssh.Marshal(allocatedPort{port})
	}
	return true, nil
}

func (c *connection) cancelTCP(payload []byte) bool {
	var options listenTCP
	return ssh.Unmarshal(payload, &options) == nil && c.drop(tcpName(options.Host, options.Port))
}

// listenPath opens a unix socket that forwards to the client. A stale socket is replaced; one in use is not.
func (c *connection) listenPath(payload []byte) bool {
	var options listenPath
	if !c.rights.forwarding || ssh.Unmarshal(payload, &options) != nil {
		return false
	}
	listener, err := c.listenOnFile(options.Path)
	if err != nil || !c.keep(pathName(options.Path), listener) {
		return false
	}
	go c.takeIn(listener, "forwarded-streamlocal@openssh.com", func(net.Conn) []byte {
		return ssh.Marshal(forwardedPath{Path: options.Path})
	})
	return true
}

func (c *connection) cancelPath(payload []byte) bool {
	var options listenPath
	return ssh.Unmarshal(payload, &options) == nil && c.drop(pathName(options.Path))
}

func (c *connection) listenOnFile(path string) (net.Listener, error) {
	identity := c.server.config.Identity
	address := fileAddress(path)
	var listener *net.UnixListener
	err := identity.Do(func() (err error) {
		if other, err := net.DialUnix("unix", nil, address); err == nil {
			_ = other.Close()
			return os.ErrExist
		} else if errors.Is(err, unix.ECONNREFUSED) {
			_ = os.Remove(address.Name)
		}
		if listener, err = net.ListenUnix("unix", address); err != nil {
			return err
		}
		listener.SetUnlinkOnClose(false) // it would be done with root's permissions
		return os.Chmod(address.Name, 0o600)
	})
	if err != nil {
		if listener != nil {
			_ = listener.Close()
		}
		return nil, err
	}
	return &fileListener{UnixListener: listener, remove: func() {
		_ = identity.Do(func() error { return os.Remove(address.Name) })
	}}, nil
}

type fileListener struct {
	*net.UnixListener
	remove func()
}

func (listener *fileListener) Close() error {
	err := listener.UnixListener.Close()
	if err == nil {
		listener.remove()
	}
	return err
}

// fileAddress is a path even if it begins with "@", which Go takes for an abstract name.
func fileAddress(path string) *net.UnixAddr {
	if strings.HasPrefix(path, "@") {
		path = "./" + path
	}
	return &net.UnixAddr{Net: "unix", Name: path}
}

// takeIn forwards every incoming connection to the client.
func (c *connection) takeIn(listener net.Listener, kind string, about func(net.Conn) []byte) {
	for {
		incoming, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		go func() {
			channel, requests, err := c.ssh.OpenChannel(kind, about(incoming))
			if err != nil {
				_ = incoming.Close()
				return
			}
			go ssh.DiscardRequests(requests)
			carry(channel, incoming)
		}()
	}
}

// keep registers a listener until it is cancelled or the connection ends; false if that has ended already.
func (c *connection) keep(name string, listener net.Listener) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if _, taken := c.listeners[name]; taken || c.listeners == nil {
		_ = listener.Close()
		return false
	}
	c.listeners[name] = listener
	return true
}

func (c *connection) drop(name string) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	listener, known := c.listeners[name]
	if known {
		delete(c.listeners, name)
		_ = listener.Close()
	}
	return known
}

func tcpName(host string, port uint32) string { return fmt.Sprintf("tcp %s %d", host, port) }
func pathName(path string) string             { return "path " + path }

type halfCloser interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// carry copies bytes in both directions until both sides have finished, or one is gone.
func carry(channel ssh.Channel, socket net.Conn) {
	done := make(chan struct{}, 2)
	other := socket.(halfCloser) // TCP and unix sockets both are
	pass := func(to, from halfCloser) {
		_, err := copyAll(to, from)
		_ = to.CloseWrite()
		if err != nil { // if writing fails, stop reading too
			_ = channel.Close()
			_ = socket.Close()
		}
		done <- struct{}{}
	}
	go pass(channel, other)
	go pass(other, channel)
	<-done
	<-done
	_ = channel.Close()
	_ = socket.Close()
}
