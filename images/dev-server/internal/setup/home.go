package setup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"gpudev/devserver/internal/process"
)

const skeleton = "/etc/skel"

// ensureHome examines only the top of the home and the files of /etc/skel: a disk may have millions of files. It runs
// as root, so it follows no links.
func ensureHome(options Options, identity process.Identity) error {
	if err := os.MkdirAll(options.Home, 0o755); err != nil {
		return err
	}
	wasWrong, err := own(options.Home, identity)
	if err != nil {
		return err
	}
	if wasWrong { // a new volume: open to all users
		if err := os.Chmod(options.Home, 0o755); err != nil {
			return err
		}
	}
	names := []string{".ssh"}
	entries, _ := os.ReadDir(skeleton)
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	for _, name := range names {
		_, ownErr := own(filepath.Join(options.Home, name), identity)
		if !errors.Is(ownErr, fs.ErrNotExist) {
			err = errors.Join(err, ownErr)
		}
	}
	return err
}

// own makes the user the owner of a file.
func own(path string, identity process.Identity) (wasWrong bool, err error) {
	info, err := os.Lstat(path)
	if err != nil {
		return false, err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(owner.Uid) == identity.UID {
		return false, nil
	}
	return true, os.Lchown(path, identity.UID, identity.GID)
}

// prepareHome writes into the home with the user's permissions.
func prepareHome(options Options) error {
	err := beginFromSkeleton(options.Home)
	if options.Mesh != nil {
		err = errors.Join(err, options.Mesh.write(options.Home))
	}
	return err
}

func beginFromSkeleton(home string) error {
	entries, err := os.ReadDir(home)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.Name() != "lost+found" {
			return nil // in use
		}
	}
	if !exists(skeleton) {
		return nil
	}
	return os.CopyFS(home, os.DirFS(skeleton))
}
