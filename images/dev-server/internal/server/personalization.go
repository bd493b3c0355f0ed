package server

import (
	"encoding/json"
	"fmt"
	"os"
	"syscall"

	"gpudev/devserver/internal/personalization"
)

// Personalize starts the personalization as the user, with the environment of a session. It returns at once.
func (server *Server) Personalize(options personalization.Options, watch *personalization.Watch) {
	if options.IsEmpty() {
		watch.End("")
		return
	}
	if err := server.startPersonalization(options, watch); err != nil {
		server.log.Warn("personalization.not_started", "error", err)
		watch.End(fmt.Sprintf("nothing was set up: no process could be started (%v)", err))
	}
}

func (server *Server) startPersonalization(options personalization.Options, watch *personalization.Watch) error {
	text, err := json.Marshal(options)
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
		_, _ = input.Write(text) // a process that has ended already is detected below
		_ = input.Close()
	}()
	go func() {
		watch.Read(output)
		_ = output.Close()
	}()
	return nil
}
