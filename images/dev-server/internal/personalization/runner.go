// Package personalization runs the owner's dotfiles and start-up script once, when the dev server is ready. It is a
// separate process with the user's permissions (the command `settle`), watched by the server: nothing waits for it, and
// its failure ends nothing. Its input is data: it reaches programs as arguments, files and variables.
package personalization

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	logFile       = ".cache/gpu-dev/setup.log"
	dotfiles      = ".dotfiles"
	cloneWithin   = 2 * time.Minute
	installWithin = 10 * time.Minute
	scriptWithin  = time.Hour
)

var (
	// The first of these that exists is run.
	installers = []string{
		"install.sh", "install", "bootstrap.sh", "bootstrap", "setup.sh", "setup",
		"script/install", "script/bootstrap", "script/setup",
	}
	// There is no terminal for prompts. The user's own variables override these.
	forGit = []string{
		"GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=true", "SSH_ASKPASS=true", "GIT_ALLOW_PROTOCOL=https:ssh",
		"GIT_SSH_COMMAND=ssh -o BatchMode=yes -o StrictHostKeyChecking=accept-new",
	}
)

// Options is the owner's personalization. Empty: none.
type Options struct {
	Dotfiles string `json:"dotfiles"`
	Script   string `json:"startup_script"`
}

// IsEmpty returns whether there is nothing to do.
func (options Options) IsEmpty() bool { return options.Dotfiles == "" && options.Script == "" }

// Report is the progress, without any of the owner's data.
type Report struct {
	Words string `json:"words"`
	Final bool   `json:"final"`
}

// Run does everything as the current user, in the current environment, and passes its progress to report.
func Run(options Options, home string, report func(Report)) {
	log, err := openLog(home)
	if err != nil { // a full disk, or a home that its owner cannot access
		report(Report{fmt.Sprintf("nothing was set up: the home cannot be written to (%v)", reason(err)), true})
		return
	}
	defer log.Close()
	run := runner{home: home, log: log}
	var outcomes []string
	if options.Dotfiles != "" {
		outcomes = run.installDotfiles(options.Dotfiles)
	}
	if options.Script != "" {
		report(Report{strings.Join(append(outcomes, "start-up script: running"), "; "), false})
		outcomes = append(outcomes, run.runScript(options.Script))
	}
	words := strings.Join(outcomes, "; ")
	if run.failed {
		words += fmt.Sprintf(" (~/%s has more)", logFile)
	}
	report(Report{words, true})
}

type runner struct {
	home   string
	log    *os.File
	failed bool
}

func (run *runner) installDotfiles(url string) []string {
	git, err := exec.LookPath("git")
	if err != nil {
		return []string{run.outcome("dotfiles", "there is no git here")}
	}
	folder := filepath.Join(run.home, dotfiles)
	var outcome string
	if _, err := os.Lstat(folder); errors.Is(err, os.ErrNotExist) {
		if end := run.clone(git, url, folder); end != "" {
			return []string{run.outcome("dotfiles", "git clone "+end)}
		}
		outcome = "dotfiles: cloned"
	} else if origin(git, folder) != url {
		return []string{run.outcome("dotfiles", "~/"+dotfiles+" is not a clone of this repository; it stays as it is")}
	} else if end := run.execute(cloneWithin, run.home, forGit, git, "-C", folder, "pull", "--ff-only"); end != "" {
		return []string{run.outcome("dotfiles", "git pull "+end)}
	} else {
		outcome = "dotfiles: up to date"
	}
	for _, name := range installers {
		path := filepath.Join(folder, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return []string{outcome, run.outcome(name, run.execute(installWithin, folder, nil, program(path)...))}
		}
	}
	return []string{outcome}
}

// clone uses a draft folder and renames it: the next start would take an incomplete clone for a complete one.
func (run *runner) clone(git, url, folder string) string {
	draft := folder + "." + randomName()
	end := run.execute(cloneWithin, run.home, forGit, git, "clone", "--quiet", "--recurse-submodules", "--", url, draft)
	if end == "" {
		if err := os.Rename(draft, folder); err != nil {
			end = fmt.Sprintf("could not be moved into place (%v)", reason(err))
		}
	}
	if end != "" {
		_ = os.RemoveAll(draft)
	}
	return end
}

func origin(git, folder string) string {
	ctx, cancel := context.WithTimeout(context.Background(), cloneWithin)
	defer cancel()
	output, err := exec.CommandContext(ctx, git, "-C", folder, "config", "--local", "--get", "remote.origin.url").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(output))
}

// runScript runs it from a temporary file that only the user can read.
func (run *runner) runScript(text string) string {
	folder := os.Getenv("XDG_RUNTIME_DIR")
	if folder == "" {
		folder = os.TempDir()
	}
	path := filepath.Join(folder, "gpu-dev-startup-"+randomName())
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o700)
	if err == nil {
		defer os.Remove(path)
		_, err = file.WriteString(text)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		return run.outcome("start-up script", fmt.Sprintf("it could not be written (%v)", reason(err)))
	}
	return run.outcome("start-up script", run.execute(scriptWithin, run.home, nil, program(path)...))
}

// outcome formats one outcome; an empty end means success.
func (run *runner) outcome(what, end string) string {
	if end == "" {
		return what + ": done"
	}
	run.failed = true
	return what + ": " + end
}

// program returns how to run a file: directly if it has a #! line, otherwise with the shell.
func program(path string) []string {
	begins := make([]byte, 2)
	if file, err := os.Open(path); err == nil {
		_, _ = file.Read(begins)
		_ = file.Close()
	}
	if string(begins) == "#!" && unix.Access(path, unix.X_OK) == nil {
		return []string{path}
	}
	shell := os.Getenv("SHELL")
	if shell == "" {
		shell = "/bin/sh"
	}
	return []string{shell, path}
}

// execute returns how a program failed; empty for success. Its background processes continue.
func (run *runner) execute(within time.Duration, folder string, variables []string, argv ...string) string {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	command := exec.CommandContext(ctx, argv[0], argv[1:]...)
	command.Dir = folder
	command.Env = append(append([]string{}, variables...), os.Environ()...)
	command.Stdout, command.Stderr = run.log, run.log
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	command.Cancel = func() error { return unix.Kill(-command.Process.Pid, unix.SIGKILL) }
	err := command.Run()
	var ended *exec.ExitError
	switch {
	case err == nil:
		return ""
	case ctx.Err() != nil:
		return fmt.Sprintf("took longer than %g minutes and was ended", within.Minutes())
	case errors.As(err, &ended):
		if status, ok := ended.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return fmt.Sprintf("was killed by signal %d", status.Signal())
		}
		return fmt.Sprintf("ended with %d", ended.ExitCode())
	default:
		return fmt.Sprintf("could not be started (%v)", reason(err))
	}
}

func openLog(home string) (*os.File, error) {
	path := filepath.Join(home, logFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	flags := os.O_WRONLY | os.O_CREATE | os.O_TRUNC | os.O_APPEND | unix.O_NOFOLLOW
	return os.OpenFile(path, flags, 0o600)
}

// reason returns the error without its path.
func reason(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

func randomName() string {
	bytes := make([]byte, 8)
	_, _ = rand.Read(bytes)
	return hex.EncodeToString(bytes)
}
