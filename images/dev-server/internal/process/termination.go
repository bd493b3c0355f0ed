package process

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	lookAgainAfter = 100 * time.Millisecond
	killedAreGone  = 2 * time.Second
)

// EndAll ends all descendants: SIGHUP for sessions, SIGTERM for background processes, SIGKILL after the grace period.
// It returns when none is left.
func (children *Children) EndAll(grace time.Duration) {
	children.ask()
	if !children.waitUntilNone(grace) {
		for deadline := time.Now().Add(killedAreGone); time.Now().Before(deadline); {
			for pid := range descendants() {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
			if children.waitUntilNone(lookAgainAfter) {
				return
			}
		}
	}
}

func (children *Children) ask() {
	family := descendants()
	leaders := children.Leaders()
	for pid := range leaders {
		_ = unix.Kill(-pid, unix.SIGHUP)
		_ = unix.Kill(-pid, unix.SIGCONT)
	}
	for pid, kin := range family {
		if _, leads := leaders[kin.group]; leads {
			continue // its group has been signalled
		}
		number := unix.SIGTERM
		if leaders[kin.session] {
			number = unix.SIGHUP // a job of a shell on a terminal, as when the terminal is lost
		}
		_ = unix.Kill(pid, number)
		_ = unix.Kill(pid, unix.SIGCONT)
	}
}

func (children *Children) waitUntilNone(atMost time.Duration) bool {
	deadline := time.NewTimer(atMost)
	defer deadline.Stop()
	for {
		changed := children.Changed()
		if !haveChildren() {
			return true
		}
		select {
		case <-changed:
		case <-time.After(lookAgainAfter):
		case <-deadline.C:
			return !haveChildren()
		}
	}
}

// haveChildren checks without waiting. Orphans become our children, so no child means no descendant.
func haveChildren() bool {
	err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err != unix.ECHILD
}

type kinship struct{ parent, group, session int }

// descendants reads the process table. Without /proc only our own children are known.
func descendants() map[int]kinship {
	processes := map[int]kinship{}
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if stat, err := os.ReadFile("/proc/" + entry.Name() + "/stat"); err == nil {
			if kin, ok := parseStat(stat); ok {
				processes[pid] = kin
			}
		}
	}
	family := map[int]kinship{}
	for pid, kin := range processes {
		if descendsFrom(os.Getpid(), pid, processes) {
			family[pid] = kin
		}
	}
	return family
}

func descendsFrom(ancestor, pid int, processes map[int]kinship) bool {
	for range len(processes) { // the table is not a consistent snapshot: a cycle is possible
		kin, known := processes[pid]
		if !known || pid == ancestor {
			return false
		}
		if kin.parent == ancestor {
			return true
		}
		pid = kin.parent
	}
	return false
}

// parseStat reads parent, group and session from /proc/PID/stat. The name before them can contain anything, even ")".
func parseStat(stat []byte) (kinship, bool) {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 4 {
		return kinship{}, false
	}
	var numbers [3]int
	for i := range numbers {
		number, err := strconv.Atoi(string(fields[i+1]))
		if err != nil {
			return kinship{}, false
		}
		numbers[i] = number
	}
	return kinship{parent: numbers[0], group: numbers[1], session: numbers[2]}, true
}
