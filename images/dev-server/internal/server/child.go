package server

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"gpudev/devserver/internal/messages"
	"gpudev/devserver/internal/process"
	"gpudev/devserver/internal/terminal"
)

// start runs the requested command; it returns at once.
func (s *session) start() {
	var err error
	if s.terminal != nil {
		err = s.startOnTerminal()
	} else {
		err = s.startOnPipes()
	}
	if err != nil { // out of processes or descriptors (the user's limits), or an image without a shell
		var errno syscall.Errno
		if errors.As(err, &errno) {
			err = errno
		}
		_, _ = fmt.Fprintf(s.channel.Stderr(), "gpu-dev: cannot start a process: %v\r\n", err)
		s.exitWith(cannotStart)
		_ = s.channel.Close()
	}
}

func (s *session) startOnTerminal() error {
	if s.kind == "shell" {
		s.greet()
	}
	opened := s.terminal
	child, err := s.launch([]*os.File{opened.Slave, opened.Slave, opened.Slave})
	_ = opened.Slave.Close()
	if err != nil {
		_ = opened.Master.Close()
		return err
	}
	s.child = child
	pump := &terminalPump{master: opened.Master, ended: make(chan struct{})}
	texts := s.connection.server.board.Attach()
	go func() { _, _ = copyAll(opened.Master, s.channel) }()
	go pump.run(lockedWriter{s.channel, &s.writing})
	go s.show(texts)
	go func() {
		select {
		case <-child.Done:
			pump.finish()
		case <-s.lost:
		}
		s.connection.server.board.Detach(texts)
		_ = opened.Master.Close() // hangs up on processes still using the terminal
		<-child.Done
		s.exit(child.Status)
	}()
	return nil
}

// show writes messages to the client only. The program on the terminal is only asked to redraw, because a full screen
// would be off by a line.
func (s *session) show(texts <-chan string) {
	for text := range texts {
		shown := messages.Above(text, s.term, terminal.Columns(s.terminal.Master))
		s.writing.Lock()
		_, _ = s.channel.Write(shown)
		s.writing.Unlock()
		terminal.Redraw(s.terminal.Master)
	}
}

func (s *session) startOnPipes() error {
	var theirs, ours []*os.File
	closeAll := func(files []*os.File) {
		for _, file := range files {
			_ = file.Close()
		}
	}
	for i := range 3 {
		reader, writer, err := pipe(i == 0)
		if err != nil {
			closeAll(theirs)
			closeAll(ours)
			return err
		}
		if i == 0 {
			reader, writer = writer, reader
		}
		theirs, ours = append(theirs, writer), append(ours, reader)
	}
	child, err := s.launch(theirs)
	closeAll(theirs)
	if err != nil {
		closeAll(ours)
		return err
	}
	s.child, s.output = child, ours[1]
	go func() {
		_, _ = copyAll(ours[0], s.channel)
		_ = ours[0].Close()
		_, _ = copyAll(io.Discard, s.channel) // drop unread input, as a pipe does
	}()
	var reading sync.WaitGroup
	for i, to := range map[int]io.Writer{1: s.channel, 2: s.channel.Stderr()} {
		reading.Go(func() {
			_, _ = copyAll(to, ours[i])
			_ = ours[i].Close()
		})
	}
	go s.finishOnPipes(ours, &reading)
	return nil
}

// pipe creates a pipe whose own end never blocks a thread; the other end blocks, as programs expect.
func pipe(weWrite bool) (reader, writer *os.File, err error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, err
	}
	ours := ends[0]
	if weWrite {
		ours = ends[1]
	}
	if err := unix.SetNonblock(ours, true); err != nil {
		return nil, nil, errors.Join(err, unix.Close(ends[0]), unix.Close(ends[1]))
	}
	return os.NewFile(uintptr(ends[0]), "pipe"), os.NewFile(uintptr(ends[1]), "pipe"), nil
}

// finishOnPipes: a child may outlive its client as long as it neither reads nor writes. Only sftp is killed: it has
// nothing left to do, and may be blocked on a file without noticing.
func (s *session) finishOnPipes(ours []*os.File, reading *sync.WaitGroup) {
	read := make(chan struct{})
	go func() {
		reading.Wait()
		close(read)
	}()
	select {
	case <-read:
	case <-s.lost:
		for _, file := range ours {
			_ = file.Close()
		}
		if s.kind == "subsystem" {
			s.child.Signal(unix.SIGTERM)
		}
	}
	<-s.child.Done
	<-read
	s.exit(s.child.Status)
}

// launch starts the child in its own session, as the user, with only its three descriptors.
func (s *session) launch(files []*os.File) (*process.Child, error) {
	config := s.config()
	shell := config.Shell()
	program, argv := s.program(shell)
	attributes := &syscall.ProcAttr{
		Dir: config.Home,
		Env: s.environment(shell),
		Sys: &syscall.SysProcAttr{Setsid: true, Setctty: s.terminal != nil, Credential: config.Identity.Credential()},
	}
	for _, file := range files {
		raw, err := file.SyscallConn()
		if err != nil {
			return nil, err
		}
		if err := raw.Control(func(fd uintptr) { attributes.Files = append(attributes.Files, fd) }); err != nil {
			return nil, err
		}
	}
	child, err := s.connection.server.children.Start(program, argv, attributes, s.terminal != nil)
	if err != nil && isAboutAPath(err) { // most likely the home is missing or closed to its owner
		attributes.Dir = "/"
		child, err = s.connection.server.children.Start(program, argv, attributes, s.terminal != nil)
	}
	return child, err
}

func isAboutAPath(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EACCES)
}

func (s *session) program(shell string) (string, []string) {
	name := filepath.Base(shell)
	switch s.kind {
	case "subsystem":
		return ourselves, []string{"gpudev-devserver", "sftp"}
	case "exec":
		return shell, []string{name, "-c", strings.ReplaceAll(s.command, "\x00", "")}
	default:
		return shell, []string{"-" + name}
	}
}

// ourselves is a path that a child can run even if it cannot see our folder.
const ourselves = "/proc/self/exe"

type lockedWriter struct {
	to    io.Writer
	mutex *sync.Mutex
}

func (writer lockedWriter) Write(data []byte) (int, error) {
	writer.mutex.Lock()
	defer writer.mutex.Unlock()
	return writer.to.Write(data)
}

// RFC 4254, section 6.10
var portableSignals = map[string]syscall.Signal{
	"ABRT": unix.SIGABRT, "ALRM": unix.SIGALRM, "FPE": unix.SIGFPE, "HUP": unix.SIGHUP, "ILL": unix.SIGILL,
	"INT": unix.SIGINT, "KILL": unix.SIGKILL, "PIPE": unix.SIGPIPE, "QUIT": unix.SIGQUIT, "SEGV": unix.SIGSEGV,
	"TERM": unix.SIGTERM, "USR1": unix.SIGUSR1, "USR2": unix.SIGUSR2,
}

func signalName(number syscall.Signal) string {
	for name, portable := range portableSignals {
		if portable == number {
			return name
		}
	}
	name := unix.SignalName(number)
	if name == "" { // a real-time signal
		name = fmt.Sprintf("SIG%d", number)
	}
	return name + "@openssh.com"
}
