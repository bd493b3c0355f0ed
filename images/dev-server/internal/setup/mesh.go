package setup

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// gangAlias is the one name under which all members' host keys are known: they share one.
const gangAlias = "gpu-dev-gang"

// Mesh lets the members of a gang log in to each other by name, without a question.
type Mesh struct {
	// Key is the private key, as the text of an OpenSSH key file.
	Key []byte
	// HostKey is the members' public host key, as a line of an authorized_keys file has it.
	HostKey string
	// Hosts are the members' full names.
	Hosts []string
	User  string
	Port  int
}

// write keeps all of ours in a folder of its own, replaced by the next gang; the person's own configuration gets one
// line that includes it.
func (mesh *Mesh) write(home string) error {
	folder := filepath.Join(home, ".ssh", "gpu-dev")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	files := map[string]string{
		"mesh_key":    string(mesh.Key),
		"known_hosts": gangAlias + " " + mesh.HostKey,
		"config":      mesh.configuration(),
	}
	for name, content := range files {
		if err := writeWhole(filepath.Join(folder, name), []byte(content), 0o600, os.Geteuid(), os.Getegid()); err != nil {
			return err
		}
	}
	return includeFirst(filepath.Join(home, ".ssh", "config"))
}

// configuration also lets people leave out what comes after the first dot.
func (mesh *Mesh) configuration() string {
	var text, all strings.Builder
	for _, host := range mesh.Hosts {
		short, _, _ := strings.Cut(host, ".")
		fmt.Fprintf(&text, "Host %s\n  HostName %s\n", short, host)
		fmt.Fprintf(&all, " %s %s", short, host)
	}
	fmt.Fprintf(&text,
		"Host%s\n  User %s\n  Port %d\n  IdentityFile ~/.ssh/gpu-dev/mesh_key\n  HostKeyAlias %s\n"+
			"  UserKnownHostsFile ~/.ssh/gpu-dev/known_hosts\n  StrictHostKeyChecking yes\n",
		all.String(), mesh.User, mesh.Port, gangAlias)
	return text.String()
}

func includeFirst(path string) error {
	const include = "Include gpu-dev/config\n"
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no plain file and stays as it is; add %q yourself", path, strings.TrimSpace(include))
	}
	text, err := readIfThere(path)
	if err != nil || strings.Contains(text, include) {
		return err
	}
	return writeWhole(path, []byte(include+text), 0o600, os.Geteuid(), os.Getegid())
}
