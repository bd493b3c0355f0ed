package server

import (
	"encoding/json"
	"fmt"
	"os"
	"syscall"

	"gpudev/devserver/internal/settling"
)

// Settle has the owner's own set-up carried out, as the person and with what every session has. It returns at once.
func (server *Server) Settle(wish settling.Wish, watch *settling.Watch) {
	if wish.IsEmpty() {
		watch.End("")
		return
	}
	if err := server.startSettling(wish, watch); err != nil {
		server.log.Warn("settling.not_started", "error", err)
		watch.End(fmt.Sprintf("nothing was set up: no process could be started (%v)", err))
	}
}

func (server *Server) startSettling(wish settling.Wish, watch *settling.Watch) error {
	text, err := json.Marshal(wish)
	if err != nil {
		return err
	}
	theirInput, input, err := os.Pipe()
	if err != nil {
		return err
	}
	defer theirInput.Close()
	output, theirOutput, err := os.Pipe()
	if err != nil {
		_ = input.Close()
		return err
	}
	defer theirOutput.Close()
	config := server.config
	attributes := &syscall.ProcAttr{
		Dir:   "/",
		Env:   config.environment(config.Shell(), newVariables(), false).list(),
		Files: []uintptr{theirInput.Fd(), theirOutput.Fd(), os.Stderr.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true, Credential: config.Identity.Credential()},
	}
	argv := []string{"gpudev-devserver", "settle", "--home", config.Home}
	if _, err := server.children.Start(ourselves, argv, attributes, false); err != nil {
		_, _ = input.Close(), output.Close()
		return err
	}
	go func() {
		_, _ = input.Write(text) // one that has ended already is heard of below
		_ = input.Close()
	}()
	go func() {
		watch.Hear(output)
		_ = output.Close()
	}()
	return nil
}
