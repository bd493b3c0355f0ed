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

// ensureHome looks only at the top and at what a home begins with: a disk with millions of files is given to nobody
// file by file. Root does it, so no link is followed.
func ensureHome(wish Wish, identity process.Identity) error {
	if err := os.MkdirAll(wish.Home, 0o755); err != nil {
		return err
	}
	wasWrong, err := own(wish.Home, identity)
	if err != nil {
		return err
	}
	if wasWrong { // a fresh volume: open to everybody
		if err := os.Chmod(wish.Home, 0o755); err != nil {
			return err
		}
	}
	names := []string{".ssh"}
	entries, _ := os.ReadDir(skeleton)
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	for _, name := range names {
		_, ownErr := own(filepath.Join(wish.Home, name), identity)
		if !errors.Is(ownErr, fs.ErrNotExist) {
			err = errors.Join(err, ownErr)
		}
	}
	return err
}

// own gives a file to the person where it is somebody else's.
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

// settleIn writes into the home, with the person's own rights.
func settleIn(wish Wish) error {
	err := beginFromSkeleton(wish.Home)
	if wish.Mesh != nil {
		err = errors.Join(err, wish.Mesh.write(wish.Home))
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
			return nil // somebody lives here
		}
	}
	if !exists(skeleton) {
		return nil
	}
	return os.CopyFS(home, os.DirFS(skeleton))
}
