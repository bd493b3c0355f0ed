// Package settling carries out the owner's own set-up of a dev server, once, when it is ready: dotfiles, then a start-up
// script. It is a process of its own with the person's rights (the command `settle`), watched by the server: nobody waits
// for it and nothing fails with it. All of it is data: it reaches programs as arguments, files and variables.
package settling

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
	// The first of these that there is.
	installers = []string{
		"install.sh", "install", "bootstrap.sh", "bootstrap", "setup.sh", "setup",
		"script/install", "script/bootstrap", "script/setup",
	}
	// Nobody is there to be asked. What the person has set is stronger.
	forGit = []string{
		"GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=true", "SSH_ASKPASS=true", "GIT_ALLOW_PROTOCOL=https:ssh",
		"GIT_SSH_COMMAND=ssh -o BatchMode=yes -o StrictHostKeyChecking=accept-new",
	}
)

// Wish is what the owner brings. Empty: nothing of the kind.
type Wish struct {
	Dotfiles string `json:"dotfiles"`
	Script   string `json:"startup_script"`
}

// IsEmpty says whether there is anything to do.
func (wish Wish) IsEmpty() bool { return wish.Dotfiles == "" && wish.Script == "" }

// Report is how far it is, in words that hold nothing of what the owner brings.
type Report struct {
	Words string `json:"words"`
	Final bool   `json:"final"`
}

// Run does all of it, as whoever this process is, in the environment it has. tell hears how far it is.
func Run(wish Wish, home string, tell func(Report)) {
	log, err := openLog(home)
	if err != nil { // a full disk, or a home that is closed to its owner
		tell(Report{fmt.Sprintf("nothing was set up: the home cannot be written to (%v)", reason(err)), true})
		return
	}
	defer log.Close()
	run := runner{home: home, log: log}
	var said []string
	if wish.Dotfiles != "" {
		said = run.installDotfiles(wish.Dotfiles)
	}
	if wish.Script != "" {
		tell(Report{strings.Join(append(said, "start-up script: running"), "; "), false})
		said = append(said, run.runScript(wish.Script))
	}
	words := strings.Join(said, "; ")
	if run.failed {
		words += fmt.Sprintf(" (~/%s has more)", logFile)
	}
	tell(Report{words, true})
}

type runner struct {
	home   string
	log    *os.File
	failed bool
}

func (run *runner) installDotfiles(url string) []string {
	git, err := exec.LookPath("git")
	if err != nil {
		return []string{run.said("dotfiles", "there is no git here")}
	}
	folder := filepath.Join(run.home, dotfiles)
	var told string
	if _, err := os.Lstat(folder); errors.Is(err, os.ErrNotExist) {
		if end := run.clone(git, url, folder); end != "" {
			return []string{run.said("dotfiles", "git clone "+end)}
		}
		told = "dotfiles: cloned"
	} else if origin(git, folder) != url {
		return []string{run.said("dotfiles", "~/"+dotfiles+" is not a clone of this repository; it stays as it is")}
	} else if end := run.execute(cloneWithin, run.home, forGit, git, "-C", folder, "pull", "--ff-only"); end != "" {
		return []string{run.said("dotfiles", "git pull "+end)}
	} else {
		told = "dotfiles: up to date"
	}
	for _, name := range installers {
		path := filepath.Join(folder, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return []string{told, run.said(name, run.execute(installWithin, folder, nil, program(path)...))}
		}
	}
	return []string{told}
}

// clone works beside and moves: half a clone would be taken for a whole one the next time.
func (run *runner) clone(git, url, folder string) string {
	draft := folder + "." + randomName()
	end := run.execute(cloneWithin, run.home, forGit, git, "clone", "--quiet", "--recurse-submodules", "--", url, draft)
	if end == "" {
		if err := os.Rename(draft, folder); err != nil {
			end = fmt.Sprintf("could not be put in its place (%v)", reason(err))
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
	said, err := exec.CommandContext(ctx, git, "-C", folder, "config", "--local", "--get", "remote.origin.url").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(said))
}

// runScript runs it from a file of its own, which only its user may read and which is gone afterwards.
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
		return run.said("start-up script", fmt.Sprintf("it could not be written (%v)", reason(err)))
	}
	return run.said("start-up script", run.execute(scriptWithin, run.home, nil, program(path)...))
}

// said is one part of what became of it; an empty end is a good one.
func (run *runner) said(what, end string) string {
	if end == "" {
		return what + ": done"
	}
	run.failed = true
	return what + ": " + end
}

// program: a file that says what it wants to be run by is run so; any other is a shell's.
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

// execute says how it ended where it did not end well. What it leaves in the background goes on.
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

// reason without the path it is about.
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
