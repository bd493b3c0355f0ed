package setup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// IsExecutable returns whether it is an executable file.
func IsExecutable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func readIfThere(path string) (string, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(text), err
}

// rewrite changes a system file and keeps its owner and mode.
func rewrite(path, before, after string) error {
	if before == after {
		return nil
	}
	mode, uid, gid := os.FileMode(0o644), 0, 0
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
		if owner, ok := info.Sys().(*syscall.Stat_t); ok {
			uid, gid = int(owner.Uid), int(owner.Gid)
		}
	} else if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	err := writeWhole(path, []byte(after), mode, uid, gid)
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EXDEV) { // a mount point: it cannot be replaced, only written
		return os.WriteFile(path, []byte(after), mode)
	}
	return err
}

// writeWhole replaces a file atomically.
func writeWhole(path string, content []byte, mode os.FileMode, uid, gid int) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".gpu-dev-*")
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	err = errors.Join(err, file.Chmod(mode))
	if os.Geteuid() == 0 {
		err = errors.Join(err, file.Chown(uid, gid))
	}
	err = errors.Join(err, file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		_ = os.Remove(file.Name())
	}
	return err
}
