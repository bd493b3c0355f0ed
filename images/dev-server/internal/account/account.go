// Package account computes the contents of passwd, group and shadow with the user `dev`. Text in, text out: it reads
// and writes no files.
package account

import (
	"strconv"
	"strings"
)

// Person is a line of /etc/passwd, with the fields needed here.
type Person struct {
	Name  string
	UID   int
	GID   int
	Home  string
	Shell string
}

const (
	nameField, numberField, gidField, homeField, shellField = 0, 2, 3, 5, 6

	fieldsOfPasswd = 7
	fieldsOfGroup  = 4
)

// Find looks up a user by name.
func Find(passwd, name string) (Person, bool) {
	for _, line := range lines(passwd) {
		if fields := strings.Split(line, ":"); len(fields) == fieldsOfPasswd && fields[nameField] == name {
			return personFrom(fields)
		}
	}
	return Person{}, false
}

// FindUID looks up a user by uid.
func FindUID(passwd string, uid int) (Person, bool) {
	for _, line := range lines(passwd) {
		fields := strings.Split(line, ":")
		if len(fields) == fieldsOfPasswd && fields[numberField] == strconv.Itoa(uid) {
			return personFrom(fields)
		}
	}
	return Person{}, false
}

func personFrom(fields []string) (Person, bool) {
	uid, uidErr := strconv.Atoi(fields[numberField])
	gid, gidErr := strconv.Atoi(fields[gidField])
	if uidErr != nil || gidErr != nil {
		return Person{}, false
	}
	return Person{Name: fields[nameField], UID: uid, GID: gid, Home: fields[homeField], Shell: fields[shellField]}, true
}

// Passwd ensures the user with exactly these values. If another user has the uid (the first user of many images), the
// line comes before theirs, so that the uid resolves to this name.
func Passwd(passwd string, person Person, hasShadow bool) string {
	password := "*"
	if hasShadow {
		password = "x"
	}
	if strings.TrimSpace(passwd) == "" {
		passwd = "root:" + password + ":0:0:root:/root:/bin/sh\n"
	}
	uid := strconv.Itoa(person.UID)
	line := strings.Join([]string{
		person.Name, password, uid, strconv.Itoa(person.GID), "", person.Home, person.Shell,
	}, ":")
	return placed(passwd, line, person.Name, uid)
}

// Group ensures the group with this gid; its members stay.
func Group(group, name string, gid int) string {
	if strings.TrimSpace(group) == "" {
		group = "root:x:0:\n"
	}
	members := ""
	for _, line := range lines(group) {
		if fields := strings.Split(line, ":"); len(fields) == fieldsOfGroup && fields[nameField] == name {
			members = fields[3]
		}
	}
	number := strconv.Itoa(gid)
	return placed(group, strings.Join([]string{name, "x", number, members}, ":"), name, number)
}

// Shadow ensures the user there too (sudo needs it), with a password that nothing matches.
func Shadow(shadow, name string) string {
	for _, line := range lines(shadow) {
		if strings.HasPrefix(line, name+":") {
			return shadow
		}
	}
	return ended(shadow) + name + ":*:19000:0:99999:7:::\n"
}

// GroupsOf returns the gids of all groups with this member.
func GroupsOf(group, name string) []int {
	var found []int
	for _, line := range lines(group) {
		fields := strings.Split(line, ":")
		if len(fields) != fieldsOfGroup {
			continue
		}
		for member := range strings.SplitSeq(fields[3], ",") {
			if gid, err := strconv.Atoi(fields[numberField]); err == nil && member == name {
				found = append(found, gid)
			}
		}
	}
	return found
}

// placed replaces the line of that name, and puts it before all others with the same number.
func placed(text, line, name, number string) string {
	var result []string
	stands := false
	for _, old := range lines(text) {
		fields := strings.Split(old, ":")
		isOurs := fields[nameField] == name
		sameNumber := len(fields) > numberField && fields[numberField] == number
		if (isOurs || sameNumber) && !stands {
			result = append(result, line)
			stands = true
		}
		if !isOurs {
			result = append(result, old)
		}
	}
	if !stands {
		result = append(result, line)
	}
	return strings.Join(result, "\n") + "\n"
}

func lines(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

func ended(text string) string {
	if text == "" || strings.HasSuffix(text, "\n") {
		return text
	}
	return text + "\n"
}
