// Package process starts child processes, hears of their end, and acts with the rights of the person they belong to.
// It knows neither SSH nor what the children do.
package process

import (
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Identity is whom sessions run as. Where we are not root it is ourselves and nothing can be switched.
type Identity struct {
	UID    int
	GID    int
	Groups []int
	// Switches is true where we are root and become somebody else.
	Switches bool
}

// Credential is what a child gets when it is started; nil where it stays what we are.
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

// Do runs a piece of work with the person's own rights: files they cannot touch cannot be touched through us, and
// whoever they connect to sees their uid. Only this thread changes, and only its effective ids, so that the person
// can neither signal nor trace it meanwhile. The work must not start goroutines that it waits for.
func (identity Identity) Do(work func() error) error {
	if !identity.Switches {
		return work()
	}
	runtime.LockOSThread() // never unlocked unless everything was taken back: a half-changed thread ends with its goroutine
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
		return fmt.Errorf("taking back our own rights: %w", restoreErr)
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

// Go's own wrappers change all threads of the process; these change the calling one.

func setThreadIDs(call uintptr, effective int) error {
	const keep = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(call, keep, uintptr(effective), keep); errno != 0 {
		return errno
	}
	return nil
}

func setThreadGroups(groups []int) error {
	list := make([]uint32, len(groups)+1) // never empty, so that there is an address to give
	for i, group := range groups {
		list[i] = uint32(group)
	}
	_, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&list[0])), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
