// Package setup prepares a container of any image for the user `dev`: account, sudo, home, and the other members of a
// gang. Every step is idempotent. A step that the image does not allow (a read-only file system, for example) is logged
// and skipped, so that users can still log in.
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

	// Debian's /etc/profile overrides the image's PATH; the variable is data, this text never changes.
	profileText = "# Restores the image's PATH in login shells.\n" +
		"if [ -n \"${GPU_DEV_IMAGE_PATH-}\" ]; then PATH=$GPU_DEV_IMAGE_PATH; export PATH; unset GPU_DEV_IMAGE_PATH; fi\n"
)

// Options describes the user to set up.
type Options struct {
	Name string
	UID  int
	Home string
	// Mesh is the configuration of a gang; nil without one.
	Mesh *Mesh
}

// Result is the result: the user of sessions, and their home.
type Result struct {
	Identity process.Identity
	Home     string
	// RuntimeDir belongs to the user; empty if it could not be created.
	RuntimeDir string
}

// Prepare does all steps. Without root, sessions run as the current user and the system is not changed.
func Prepare(options Options, log *slog.Logger) (Result, error) {
	unix.Umask(0o022)
	if os.Geteuid() != 0 {
		return asOurselves(options, log), nil
	}
	identity := process.Identity{UID: options.UID, GID: options.UID, Switches: true}
	if err := identity.Do(func() error { return nil }); err != nil {
		return Result{}, fmt.Errorf("root of this container cannot switch to %s (it needs SETUID and SETGID): %w", options.Name, err)
	}
	steps := []struct {
		name string
		do   func() error
	}{
		{"account", func() error { return ensureAccount(options) }},
		{"sudo", func() error { return ensureSudo(options.Name) }},
		{"profile", ensureProfile},
		{"home", func() error { return ensureHome(options, identity) }},
	}
	for _, step := range steps {
		if err := step.do(); err != nil {
			log.Warn("setup.step_skipped", "step", step.name, "error", err)
		}
	}
	identity.Groups = groupsFor(options)
	if err := identity.Do(func() error { return prepareHome(options) }); err != nil {
		log.Warn("setup.step_skipped", "step", "prepare home", "error", err)
	}
	return Result{Identity: identity, Home: options.Home, RuntimeDir: ensureRuntimeDir(options.UID)}, nil
}

func ensureAccount(options Options) error {
	hasShadow := exists(shadowFile)
	passwd, err := readIfThere(passwdFile)
	if err != nil {
		return err
	}
	known, _ := account.Find(passwd, options.Name)
	person := account.Person{
		Name: options.Name, UID: options.UID, GID: options.UID, Home: options.Home, Shell: shellToStartWith(known.Shell),
	}
	group, err := readIfThere(groupFile)
	if err != nil {
		return err
	}
	if err := rewrite(groupFile, group, account.Group(group, options.Name, options.UID)); err != nil {
		return err
	}
	if hasShadow {
		shadow, err := readIfThere(shadowFile)
		if err != nil {
			return err
		}
		if err := rewrite(shadowFile, shadow, account.Shadow(shadow, options.Name)); err != nil {
			return err
		}
	}
	return rewrite(passwdFile, passwd, account.Passwd(passwd, person, hasShadow))
}

// shellToStartWith keeps a shell that was chosen on purpose, but not the default of useradd or of a service account.
func shellToStartWith(known string) string {
	defaultShells := []string{"", "/bin/sh", "/bin/false", "/usr/bin/false", "/sbin/nologin", "/usr/sbin/nologin"}
	if !slices.Contains(defaultShells, known) && IsExecutable(known) {
		return known
	}
	if IsExecutable("/bin/bash") {
		return "/bin/bash"
	}
	return "/bin/sh"
}

// LoginShell is the current one in passwd, or the best that exists.
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

// groupsFor returns the user's groups in the system's files, and the groups that the pod gave this container (a
// volume's group), without root's own groups.
func groupsFor(options Options) []int {
	text, _ := readIfThere(groupFile)
	groups := append([]int{options.UID}, account.GroupsOf(text, options.Name)...)
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

func asOurselves(options Options, log *slog.Logger) Result {
	passwd, _ := readIfThere(passwdFile)
	me, _ := account.FindUID(passwd, os.Getuid())
	result := Result{Identity: process.Identity{UID: os.Getuid(), GID: os.Getgid()}, Home: "/"}
	for _, home := range []string{options.Home, me.Home, os.Getenv("HOME")} {
		if home != "" && unix.Access(home, unix.W_OK|unix.X_OK) == nil {
			result.Home = home
			break
		}
	}
	options.Home = result.Home
	log.Warn("setup.not_root", "uid", result.Identity.UID, "home", result.Home,
		"meaning", "this container does not run as root: no account is created, and sessions run as this user")
	if result.Home != "/" {
		if err := prepareHome(options); err != nil {
			log.Warn("setup.step_skipped", "step", "prepare home", "error", err)
		}
	}
	return result
}
