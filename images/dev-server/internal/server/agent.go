package server

import (
	"net"
	"os"
	"path/filepath"
)

// agent is a socket that forwards to the client's ssh-agent, one for all sessions of a connection.
type agent struct {
	path     string
	listener net.Listener
	remove   func()
}

// agentPath creates the socket at first use. Its folder belongs to the user and is closed to others.
func (c *connection) agentPath() (string, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.agent != nil {
		return c.agent.path, nil
	}
	identity := c.server.config.Identity
	var folder string
	err := identity.Do(func() (err error) {
		if folder, err = os.MkdirTemp("/tmp", "gpu-dev-agent-"); err != nil {
			folder, err = os.MkdirTemp(c.server.config.Home, ".gpu-dev-agent-")
		}
		return err
	})
	if err != nil {
		return "", err
	}
	path := filepath.Join(folder, "agent.sock")
	listener, err := c.listenOnFile(path)
	remove := func() { _ = identity.Do(func() error { return os.Remove(folder) }) }
	if err != nil {
		remove()
		return "", err
	}
	c.agent = &agent{path: path, listener: listener, remove: remove}
	go c.takeIn(listener, "auth-agent@openssh.com", func(net.Conn) []byte { return nil })
	return path, nil
}

func (a *agent) close() {
	_ = a.listener.Close()
	a.remove()
}
