package account

import (
	"slices"
	"testing"
)

var dev = Person{Name: "dev", UID: 1000, GID: 1000, Home: "/home/dev", Shell: "/bin/bash"}

const line = "dev:x:1000:1000::/home/dev:/bin/bash"

func TestThePersonIsThereAfterwardsWhateverWasThereBefore(t *testing.T) {
	cases := map[string]struct{ before, after string }{
		"nothing at all":               {"", "root:x:0:0:root:/root:/bin/sh\n" + line + "\n"},
		"another user":                 {"root:x:0:0::/root:/bin/sh\n", "root:x:0:0::/root:/bin/sh\n" + line + "\n"},
		"no newline at the end":        {"root:x:0:0::/root:/bin/sh", "root:x:0:0::/root:/bin/sh\n" + line + "\n"},
		"the number is taken":          {"u:x:1000:1000::/u:/b\nv:x:2:2::/:/b\n", line + "\nu:x:1000:1000::/u:/b\nv:x:2:2::/:/b\n"},
		"the name has another number":  {"dev:x:7:7::/srv:/bin/false\nb:x:2:2::/:/b\n", line + "\nb:x:2:2::/:/b\n"},
		"both":                         {"u:x:1000:1::/u:/b\ndev:x:7:7::/:/b\n", line + "\nu:x:1000:1::/u:/b\n"},
		"it is as it should be":        {line + "\nb:x:2:2::/:/b\n", line + "\nb:x:2:2::/:/b\n"},
		"a line that is no account":    {"+::::::\n# note\n", "+::::::\n# note\n" + line + "\n"},
		"the user, written twice":      {line + "\n" + line + "\n", line + "\n"},
		"a name that begins like ours": {"developer:x:8:8::/:/b\n", "developer:x:8:8::/:/b\n" + line + "\n"},
	}
	for name, c := range cases {
		if after := Passwd(c.before, dev, true); after != c.after {
			t.Errorf("%s: %q", name, after)
		}
		if once := Passwd(c.before, dev, true); Passwd(once, dev, true) != once {
			t.Errorf("%s: the second time changes something", name)
		}
		if found, ok := Find(Passwd(c.before, dev, true), "dev"); !ok || found != dev {
			t.Errorf("%s: found %v", name, found)
		}
		if found, ok := FindUID(Passwd(c.before, dev, true), 1000); !ok || found.Name != "dev" {
			t.Errorf("%s: the number belongs to %v", name, found)
		}
	}
}

func TestAGroupKeepsItsMembersAndGetsItsNumber(t *testing.T) {
	if after := Group("root:x:0:\ndev:x:7:alice,bob\n", "dev", 1000); after != "root:x:0:\ndev:x:1000:alice,bob\n" {
		t.Error(after)
	}
	if after := Group("", "dev", 1000); after != "root:x:0:\ndev:x:1000:\n" {
		t.Error(after)
	}
}

func TestGroupsAreFoundByTheirMembers(t *testing.T) {
	group := "a:x:1:dev\nb:x:2:other,dev\nc:x:3:developer\nd:x:broken:dev\ne\nf:x:6:\n"
	if found := GroupsOf(group, "dev"); !slices.Equal(found, []int{1, 2}) {
		t.Error(found)
	}
}

func TestAPersonKnownToShadowStaysAsTheyAre(t *testing.T) {
	if after := Shadow("dev:$6$hash:1::::::\n", "dev"); after != "dev:$6$hash:1::::::\n" {
		t.Error(after)
	}
	if after := Shadow("root:*:1::::::", "dev"); after != "root:*:1::::::\ndev:*:19000:0:99999:7:::\n" {
		t.Error(after)
	}
}
