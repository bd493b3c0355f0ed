package setup

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// gangAlias is the host key alias of all members, who share one host key.
const gangAlias = "gpu-dev-gang"

// Mesh lets the members of a gang log in to each other by name, without prompts.
type Mesh struct {
	// Key is the private key, as the text of an OpenSSH key file.
	Key []byte
	// HostKey is the members' public host key, in authorized_keys format.
	HostKey string
	// Hosts are the members' full names.
	Hosts []string
	User  string
	Port  int
}

// write puts our files into a separate folder, which the next gang replaces; the user's configuration gets one Include
// line.
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

// configuration also matches the short names, up to the first dot.
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
		return fmt.Errorf("%s is not a regular file and was not changed; add %q yourself", path, strings.TrimSpace(include))
	}
	text, err := readIfThere(path)
	if err != nil || strings.Contains(text, include) {
		return err
	}
	return writeWhole(path, []byte(include+text), 0o600, os.Geteuid(), os.Getegid())
}
