package server

import (
	"crypto/ed25519"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func newKey(t *testing.T) (ssh.PublicKey, string) {
	t.Helper()
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return key, string(ssh.MarshalAuthorizedKey(key))
}

func TestOptionsOfAKeyGiveAndTakeRights(t *testing.T) {
	key, line := newKey(t)
	cases := map[string]struct {
		granted rights
		ok      bool
	}{
		``:                                     {allRights(), true},
		`no-pty `:                              {rights{forwarding: true, agent: true}, true},
		`restrict `:                            {rights{}, true},
		`restrict,pty,command="ls" `:           {rights{pty: true, command: "ls"}, true},
		`command="a \"b\"",restrict `:          {rights{command: `a "b"`}, true},
		`no-touch-required `:                   {rights{pty: true, forwarding: true, agent: true, untouched: true}, true},
		`expiry-time="20260501120001Z" `:       {allRights(), true},
		`expiry-time="202605011200Z" `:         {rights{}, false},
		`expiry-time="someday" `:               {rights{}, false},
		`from="10.0.0.0/8" `:                   {rights{}, false},
		`cert-authority `:                      {rights{}, false},
		`permitopen="localhost:1",no-pty `:     {rights{}, false},
		`no-X11-forwarding,no-user-rc,no-pty `: {rights{forwarding: true, agent: true}, true},
	}
	for options, wanted := range cases {
		granted, ok := findKey([]byte("# note\n"+options+line), key, noon)
		if ok != wanted.ok || granted != wanted.granted {
			t.Errorf("%q: %+v %v", options, granted, ok)
		}
	}
}

func TestAKeyIsFoundAmongManyAndDamagedLines(t *testing.T) {
	key, line := newKey(t)
	_, other := newKey(t)
	for _, lines := range []string{
		line, other + line, "garbage\n" + line, "\n\n# x\n" + line, "ssh-ed25519 AAAA\n" + line, "from=\"x\" " + line + line,
	} {
		if _, ok := findKey([]byte(lines), key, noon); !ok {
			t.Errorf("not found in %q", lines)
		}
	}
	for _, lines := range []string{"", other, "# " + line, "ssh-ed25519 AAAA"} {
		if _, ok := findKey([]byte(lines), key, noon); ok {
			t.Errorf("found in %q", lines)
		}
	}
}

func TestTheEnvironmentFileIsDataToTheLetter(t *testing.T) {
	all := newVariables()
	all.takeFile([]byte("A=1\nB= spaces # and more \nC=$(x) `y` \"z\"\n=nothing\n1X=bad\nno line\nA=2\nD=last"))
	wanted := []string{"A=2", "B= spaces # and more ", "C=$(x) `y` \"z\"", "D=last"}
	if list := all.list(); !slices.Equal(list, wanted) {
		t.Errorf("%q", list)
	}
}

func TestWhatDescribesTheClusterOrOurselvesIsNotForSessions(t *testing.T) {
	taken := []string{
		"PATH=/x", "LD_LIBRARY_PATH=/l", "NVIDIA_X=1", "CUDA_Y=2", "HF_HOME=/h", "MASTER_PORT=29500", "EMPTY=", "LANG=de",
	}
	left := []string{
		"KUBERNETES_SERVICE_HOST=1", "KUBERNETES_PORT=tcp", "DB_SERVICE_HOST=1", "DB_SERVICE_PORT_HTTP=1",
		"DB_PORT_5432_TCP_ADDR=1", "DB_PORT=tcp://1", "HOME=/root", "SHLVL=1", "SSH_AUTH_SOCK=/a", "GOGC=1", "broken",
	}
	all := newVariables()
	all.takeContainer(append(slices.Clone(left), taken...))
	if list := all.list(); !slices.Equal(list, taken) {
		t.Errorf("%q", list)
	}
}

func TestAClientSetsHowItsTerminalSpeaksAndNothingElse(t *testing.T) {
	for name, welcome := range map[string]bool{
		"LANG": true, "LC_ALL": true, "COLORTERM": true, "PATH": false, "LD_PRELOAD": false, "LC_": false, "XLANG": false,
		"LANGX": false, "BASH_ENV": false,
	} {
		if isAllowedFromClient(name, "x") != welcome {
			t.Error(name)
		}
	}
	if isAllowedFromClient("LANG", "a\x00b") || isAllowedFromClient("LANG", fmt.Sprintf("%2000d", 1)) {
		t.Error("too strange a value was taken")
	}
}

func TestNobodyIsLedToWhereCloudsTellSecrets(t *testing.T) {
	cluster := netip.MustParseAddr("10.96.0.1")
	closed := []string{
		"169.254.169.254", "169.254.170.23", "::ffff:169.254.169.254", "fe80::1%eth0", "fd00:ec2::254", "fd20:ce::254",
		"100.100.100.200", "192.0.0.192", "168.63.129.16", "::ffff:168.63.129.16", "fd00:42::42",
		"64:ff9b::6464:64c8", "64:ff9b::192.0.0.192", "64:ff9b::168.63.129.16",
		"2002:6464:64c8::1", "2002:c000:c0::1", "2002:a83f:8110::1",
		"64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "10.96.0.1", "::ffff:10.96.0.1",
	}
	for _, text := range closed {
		if !isClosed(netip.MustParseAddr(text), cluster) {
			t.Errorf("%s is open", text)
		}
	}
	for _, text := range []string{"127.0.0.1", "::1", "10.96.0.2", "192.168.1.7", "2001:db8::7", "64:ff9b::a00:1"} {
		if isClosed(netip.MustParseAddr(text), cluster) {
			t.Errorf("%s is closed", text)
		}
	}
	if isClosed(netip.MustParseAddr("10.96.0.1"), netip.Addr{}) {
		t.Error("closed without a cluster")
	}
}
