// gpudev-devserver turns a container of any image with a shell into a dev server: one static program that is the SSH
// server and the container's first process. See README.md.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/pkg/sftp"

	"gpudev/devserver/internal/messages"
)

const (
	programName    = "gpudev-devserver"
	usualPort      = 22
	greetsFor      = 15 * time.Minute
	answerTime     = 5 * time.Second
	longestMessage = 16 * 1024
	misusedExit    = 2
	usageMessage   = `usage: gpudev-devserver COMMAND [options]
  install --to DIR   copy this program into DIR (in an init container)
  serve              prepare the container for its user and serve SSH
  adjust             replace the authorized keys and the Jupyter configuration (standard input)
  tell               show the message on standard input in all open terminals
  list               print the contents of the home, as JSON
  settled            print the result of the personalization, as JSON
  ready              succeed when the SSH port answers
  sftp               serve files on the standard descriptors (started by a session)
  settle             run the personalization (started by the server)
Every command explains its options with -h.
`
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usageMessage)
		os.Exit(misusedExit)
	}
	commands := map[string]func([]string) error{
		"install": install, "serve": serve, "adjust": adjust, "tell": tell, "list": list, "ready": ready, "sftp": serveFiles,
		"settle": settle, "settled": settled,
	}
	command, known := commands[os.Args[1]]
	if !known {
		fmt.Fprint(os.Stderr, usageMessage)
		os.Exit(misusedExit)
	}
	if err := command(os.Args[2:]); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintf(os.Stderr, "%s %s: %v\n", programName, os.Args[1], err)
		}
		os.Exit(1)
	}
}

func tell(arguments []string) error {
	flags := flag.NewFlagSet("tell", flag.ContinueOnError)
	port := flags.Int("port", usualPort, "the SSH port of the server")
	greets := flags.Duration("greets-for", greetsFor, "how long new shells also show the message")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(os.Stdin, longestMessage))
	if err != nil {
		return fmt.Errorf("reading the message: %w", err)
	}
	if strings.TrimSpace(string(text)) == "" {
		return errors.New("no message on standard input")
	}
	shown, err := messages.Send(*port, string(text), *greets)
	if err == nil {
		fmt.Printf("shown in %d terminals\n", shown)
	}
	return err
}

func ready(arguments []string) error {
	flags := flag.NewFlagSet("ready", flag.ContinueOnError)
	port := flags.Int("port", usualPort, "the SSH port")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	connection, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", *port), answerTime)
	if err != nil {
		return err
	}
	defer connection.Close()
	_ = connection.SetDeadline(time.Now().Add(answerTime))
	greeting := make([]byte, len("SSH-2.0-"))
	if _, err := io.ReadFull(connection, greeting); err != nil || string(greeting) != "SSH-2.0-" {
		return fmt.Errorf("no SSH server on port %d: %q %w", *port, greeting, err)
	}
	return nil
}

// serveFiles runs as the user, in a separate process: a file that blocks (a pipe, a dead mount) blocks nothing else.
func serveFiles([]string) error {
	stdio := struct {
		io.Reader
		io.WriteCloser
	}{os.Stdin, os.Stdout}
	server, err := sftp.NewServer(stdio)
	if err != nil {
		return err
	}
	if err := server.Serve(); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}
