package process

import (
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Children starts processes and reaps all of them, including orphans, which come to the first process of a container.
// Nothing else in this program may wait for a process.
type Children struct {
	mutex   sync.Mutex
	running map[int]*Child
	// changed is closed and replaced whenever a process has ended.
	changed chan struct{}
}

// Child is a process we started.
type Child struct {
	Pid int
	// Done is closed when it has ended; Status is valid from then on.
	Done   chan struct{}
	Status unix.WaitStatus
	// Terminal: it leads a session on a terminal and gets SIGHUP instead of SIGTERM.
	Terminal bool

	children *Children
}

// NewChildren starts reaping, including orphans if this is not the container's first process.
func NewChildren() *Children {
	children := &Children{running: map[int]*Child{}, changed: make(chan struct{})}
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) // old kernel: orphans go to the first process
	endings := make(chan os.Signal, 1)
	signal.Notify(endings, unix.SIGCHLD)
	go func() {
		children.reap()
		for range endings {
			children.reap()
		}
	}()
	return children
}

// Start runs a program. The lock is held, so that its end is not processed before it is registered.
func (children *Children) Start(program string, argv []string, attributes *syscall.ProcAttr, terminal bool) (*Child, error) {
	children.mutex.Lock()
	defer children.mutex.Unlock()
	pid, err := syscall.ForkExec(program, argv, attributes)
	if err != nil {
		return nil, err
	}
	child := &Child{Pid: pid, Done: make(chan struct{}), Terminal: terminal, children: children}
	children.running[pid] = child
	return child, nil
}

// Signal signals the child's process group, unless it has ended: its pid may be reused by then.
func (child *Child) Signal(number syscall.Signal) {
	child.children.mutex.Lock()
	defer child.children.mutex.Unlock()
	if child.children.running[child.Pid] == child {
		_ = unix.Kill(-child.Pid, number)
	}
}

func (children *Children) reap() {
	children.mutex.Lock()
	defer children.mutex.Unlock()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid == 0 {
			break
		}
		if child, ours := children.running[pid]; ours {
			delete(children.running, pid)
			child.Status = status
			close(child.Done)
		}
	}
	close(children.changed)
	children.changed = make(chan struct{})
}

// Changed is closed when the next process ends.
func (children *Children) Changed() <-chan struct{} {
	children.mutex.Lock()
	defer children.mutex.Unlock()
	return children.changed
}

// Leaders are the pids of our running children, and whether they lead a session on a terminal.
func (children *Children) Leaders() map[int]bool {
	children.mutex.Lock()
	defer children.mutex.Unlock()
	leaders := make(map[int]bool, len(children.running))
	for pid, child := range children.running {
		leaders[pid] = child.Terminal
	}
	return leaders
}
