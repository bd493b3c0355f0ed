// Package setup makes a container of any image a place where `dev` can live: the account, sudo, the home, the names of
// the other members of a gang. Every step can run again, and one that an image does not allow (a read-only file system,
// say) is told and left out: people should get in all the same.
package setup

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"gpudev/devserver/internal/account"
	"gpudev/devserver/internal/process"
)

const (
	passwdFile  = "/etc/passwd"
	groupFile   = "/etc/group"
	shadowFile  = "/etc/shadow"
	sudoersFile = "/etc/sudoers.d/gpu-dev"
	profileFile = "/etc/profile.d/00-gpu-dev.sh"

	// Debian's /etc/profile forgets the PATH that the image has set; the variable is data, this text never changes.
	profileText = "# A login shell finds the programs that the image's PATH names.\n" +
		"if [ -n \"${GPU_DEV_IMAGE_PATH-}\" ]; then PATH=$GPU_DEV_IMAGE_PATH; export PATH; unset GPU_DEV_IMAGE_PATH; fi\n"
)

// Wish is what shall be there.
type Wish struct {
	Name string
	UID  int
	Home string
	// Mesh is what the members of a gang need to reach each other; nil for one alone.
	Mesh *Mesh
}

// Place is what is there: whom sessions run as, and where they begin.
type Place struct {
	Identity process.Identity
	Home     string
	// RuntimeDir belongs to the person alone; empty where it could not be made.
	RuntimeDir string
}

// Prepare does all of it. Where we are not root, sessions run as whoever we are and the system stays as it is.
func Prepare(wish Wish, log *slog.Logger) (Place, error) {
	unix.Umask(0o022)
	if os.Geteuid() != 0 {
		return asOurselves(wish, log), nil
	}
	identity := process.Identity{UID: wish.UID, GID: wish.UID, Switches: true}
	if err := identity.Do(func() error { return nil }); err != nil {
		return Place{}, fmt.Errorf("this container's root may not become %s (it needs SETUID and SETGID): %w", wish.Name, err)
	}
	steps := []struct {
		name string
		do   func() error
	}{
		{"account", func() error { return ensureAccount(wish) }},
		{"sudo", func() error { return ensureSudo(wish.Name) }},
		{"profile", ensureProfile},
		{"home", func() error { return ensureHome(wish, identity) }},
	}
	for _, step := range steps {
		if err := step.do(); err != nil {
			log.Warn("setup.step_left_out", "step", step.name, "error", err)
		}
	}
	identity.Groups = groupsFor(wish)
	if err := identity.Do(func() error { return settleIn(wish) }); err != nil {
		log.Warn("setup.step_left_out", "step", "settling in", "error", err)
	}
	return Place{Identity: identity, Home: wish.Home, RuntimeDir: ensureRuntimeDir(wish.UID)}, nil
}

func ensureAccount(wish Wish) error {
	hasShadow := exists(shadowFile)
	passwd, err := readIfThere(passwdFile)
	if err != nil {
		return err
	}
	known, _ := account.Find(passwd, wish.Name)
	person := account.Person{
		Name: wish.Name, UID: wish.UID, GID: wish.UID, Home: wish.Home, Shell: shellToStartWith(known.Shell),
	}
	group, err := readIfThere(groupFile)
	if err != nil {
		return err
	}
	if err := rewrite(groupFile, group, account.Group(group, wish.Name, wish.UID)); err != nil {
		return err
	}
	if hasShadow {
		shadow, err := readIfThere(shadowFile)
		if err != nil {
			return err
		}
		if err := rewrite(shadowFile, shadow, account.Shadow(shadow, wish.Name)); err != nil {
			return err
		}
	}
	return rewrite(passwdFile, passwd, account.Passwd(passwd, person, hasShadow))
}

// shellToStartWith keeps a shell that somebody chose. What useradd or a service account has was chosen by nobody.
func shellToStartWith(known string) string {
	nobodysChoice := []string{"", "/bin/sh", "/bin/false", "/usr/bin/false", "/sbin/nologin", "/usr/sbin/nologin"}
	if !slices.Contains(nobodysChoice, known) && IsExecutable(known) {
		return known
	}
	if IsExecutable("/bin/bash") {
		return "/bin/bash"
	}
	return "/bin/sh"
}

// LoginShell is the one passwd names at this moment, or the best that exists.
func LoginShell(name string) string {
	passwd, _ := readIfThere(passwdFile)
	known, _ := account.Find(passwd, name)
	return shellToStartWith(known.Shell)
}

func ensureSudo(name string) error {
	if !exists(filepath.Dir(sudoersFile)) {
		return nil
	}
	text := name + " ALL=(ALL:ALL) NOPASSWD: ALL\n"
	if err := writeWhole(sudoersFile, []byte(text), 0o440, 0, 0); err != nil {
		return err
	}
	return os.Chmod(sudoersFile, 0o440)
}

func ensureProfile() error {
	if !exists(filepath.Dir(profileFile)) {
		return nil
	}
	return writeWhole(profileFile, []byte(profileText), 0o644, 0, 0)
}

// groupsFor are those the system's files give the person, and those the pod gave this container (a volume's group),
// without those that are there because root is in them.
func groupsFor(wish Wish) []int {
	text, _ := readIfThere(groupFile)
	groups := append([]int{wish.UID}, account.GroupsOf(text, wish.Name)...)
	ofRoot := append(account.GroupsOf(text, "root"), 0)
	given, _ := os.Getgroups()
	for _, group := range given {
		if !slices.Contains(ofRoot, group) {
			groups = append(groups, group)
		}
	}
	slices.Sort(groups)
	return slices.Compact(groups)
}

func ensureRuntimeDir(uid int) string {
	dir := fmt.Sprintf("/run/user/%d", uid)
	if os.MkdirAll(filepath.Dir(dir), 0o755) != nil || (os.Mkdir(dir, 0o700) != nil && !exists(dir)) {
		return ""
	}
	if info, err := os.Lstat(dir); err != nil || !info.IsDir() || os.Lchown(dir, uid, uid) != nil {
		return ""
	}
	return dir
}

func asOurselves(wish Wish, log *slog.Logger) Place {
	passwd, _ := readIfThere(passwdFile)
	me, _ := account.FindUID(passwd, os.Getuid())
	place := Place{Identity: process.Identity{UID: os.Getuid(), GID: os.Getgid()}, Home: "/"}
	for _, home := range []string{wish.Home, me.Home, os.Getenv("HOME")} {
		if home != "" && unix.Access(home, unix.W_OK|unix.X_OK) == nil {
			place.Home = home
			break
		}
	}
	wish.Home = place.Home
	log.Warn("setup.not_root", "uid", place.Identity.UID, "home", place.Home,
		"meaning", "this container does not run as root: no account is made, and sessions run as this user")
	if place.Home != "/" {
		if err := settleIn(wish); err != nil {
			log.Warn("setup.step_left_out", "step", "settling in", "error", err)
		}
	}
	return place
}
