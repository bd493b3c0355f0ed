package setup

import (
	"strings"
	"testing"
)

func TestOurHostsReplaceThoseWeWroteBefore(t *testing.T) {
	const system = "127.0.0.1\tlocalhost\n"
	one := withHosts(system, "10.0.0.1 a\n")
	two := withHosts(one+"10.9.9.9 added-by-hand\n", "10.0.0.1 a\n10.0.0.2 b\n")
	if strings.Count(two, "10.0.0.1 a") != 1 || !strings.Contains(two, "10.0.0.2 b\n") || !strings.Contains(two, "added-by-hand") {
		t.Error(two)
	}
	if withHosts(one, "10.0.0.1 a\n") != one {
		t.Error("the second time changes something")
	}
	if withHosts(one, "") != system || withHosts(system, " \n") != system {
		t.Error("no lines of ours leave something behind")
	}
	if text := withHosts("no newline", "x"); !strings.HasPrefix(text, "no newline\n#") {
		t.Error(text)
	}
}

func TestMembersAreReachedByLongAndShortNames(t *testing.T) {
	mesh := Mesh{Hosts: []string{"a.gang", "b.gang"}, User: "dev", Port: 22}
	text := mesh.configuration()
	for _, wanted := range []string{"Host b\n  HostName b.gang\n", "Host a a.gang b b.gang\n  User dev\n  Port 22\n"} {
		if !strings.Contains(text, wanted) {
			t.Errorf("%q is not in %q", wanted, text)
		}
	}
}

func TestAShellThatSomebodyChoseIsKept(t *testing.T) {
	for known, wanted := range map[string]string{
		"": "", "/bin/sh": "", "/usr/sbin/nologin": "", "/nowhere/zsh": "", "/proc/self/exe": "/proc/self/exe",
	} {
		if wanted == "" {
			wanted = "/bin/sh"
			if IsExecutable("/bin/bash") {
				wanted = "/bin/bash"
			}
		}
		if shell := shellToStartWith(known); shell != wanted {
			t.Errorf("%q: %q", known, shell)
		}
	}
}
