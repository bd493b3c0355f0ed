// Package process starts and reaps child processes, and runs code with the user's permissions. It knows nothing about
// SSH.
package process

import (
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Identity is the user of sessions. Without root it is the current user.
type Identity struct {
	UID    int
	GID    int
	Groups []int
	// Switches is true if we are root and switch to another user.
	Switches bool
}

// Credential is the credential of a new child; nil to keep ours.
func (identity Identity) Credential() *syscall.Credential {
	if !identity.Switches {
		return nil
	}
	groups := make([]uint32, len(identity.Groups))
	for i, group := range identity.Groups {
		groups[i] = uint32(group)
	}
	return &syscall.Credential{Uid: uint32(identity.UID), Gid: uint32(identity.GID), Groups: groups}
}

// Do runs a function with the user's permissions, for files and for sockets, whose peers see the user's uid. Only this
// thread changes, and only its effective ids, so that the user can neither signal nor trace it. The function must not
// wait for goroutines that it starts.
func (identity Identity) Do(work func() error) error {
	if !identity.Switches {
		return work()
	}
	runtime.LockOSThread() // unlocked only after everything is restored: otherwise the thread ends with its goroutine
	before, err := unix.Getgroups()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("reading our groups: %w", err)
	}
	err = identity.become()
	if err == nil {
		err = work()
	}
	if restoreErr := becomeRootAgain(before); restoreErr != nil {
		return fmt.Errorf("restoring our ids: %w", restoreErr)
	}
	runtime.UnlockOSThread()
	return err
}

func (identity Identity) become() error {
	if err := setThreadGroups(identity.Groups); err != nil {
		return fmt.Errorf("setting groups: %w", err)
	}
	if err := setThreadIDs(unix.SYS_SETRESGID, identity.GID); err != nil {
		return fmt.Errorf("setting the group id: %w", err)
	}
	if err := setThreadIDs(unix.SYS_SETRESUID, identity.UID); err != nil {
		return fmt.Errorf("setting the user id: %w", err)
	}
	return nil
}

func becomeRootAgain(groups []int) error {
	if err := setThreadIDs(unix.SYS_SETRESUID, 0); err != nil {
		return err
	}
	if err := setThreadIDs(unix.SYS_SETRESGID, 0); err != nil {
		return err
	}
	return setThreadGroups(groups)
}

// Go's wrappers change all threads of the process; these change only the calling one.

func setThreadIDs(call uintptr, effective int) error {
	const keep = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(call, keep, uintptr(effective), keep); errno != 0 {
		return errno
	}
	return nil
}

func setThreadGroups(groups []int) error {
	list := make([]uint32, len(groups)+1) // never empty, so that it has an address
	for i, group := range groups {
		list[i] = uint32(group)
	}
	_, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&list[0])), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
