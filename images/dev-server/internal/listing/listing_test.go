package listing

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

var plenty = Limits{Entries: 100, Within: time.Minute}

func write(t *testing.T, path string, size int) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, make([]byte, size), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestEverythingIsCountedAndTheNearestIsNamedFirst(t *testing.T) {
	top := t.TempDir()
	write(t, filepath.Join(top, "b/c/deep"), 5)
	write(t, filepath.Join(top, "b/x"), 7)
	write(t, filepath.Join(top, "z"), 11)
	_ = os.Symlink("/etc", filepath.Join(top, "link"))
	_ = syscall.Mkfifo(filepath.Join(top, "pipe"), 0o600)
	found, err := Of(top, plenty)
	if err != nil || found.Files != 5 || found.Folders != 2 || found.SizeBytes != 23 || !found.Counted {
		t.Fatalf("%+v %v", found, err)
	}
	var names []string
	for _, entry := range found.Entries {
		names = append(names, fmt.Sprintf("%s:%s:%d", entry.Path, entry.Kind, entry.Size))
	}
	wanted := "b:folder:0 link:link:0 pipe:other:0 z:file:11 b/c:folder:0 b/x:file:7 b/c/deep:file:5"
	if strings.Join(names, " ") != wanted {
		t.Error(names)
	}
}

func TestOnlyTheNearestAreNamedWhereThereAreMany(t *testing.T) {
	top := t.TempDir()
	for number := range 50 {
		write(t, fmt.Sprintf("%s/a/f%02d", top, number), 1)
	}
	write(t, filepath.Join(top, "top"), 1)
	found, _ := Of(top, Limits{Entries: 3, Within: time.Minute})
	if found.Files != 51 || len(found.Entries) != 3 || found.Entries[1].Path != "top" || found.Entries[2].Path != "a/f00" {
		t.Errorf("%+v", found)
	}
}

func TestWhatThereIsNoTimeForIsSaidToBeMissing(t *testing.T) {
	top := t.TempDir()
	write(t, filepath.Join(top, "a"), 1)
	found, err := Of(top, Limits{Entries: 3})
	if err != nil || found.Counted || found.Files != 0 {
		t.Errorf("%+v %v", found, err)
	}
}

func TestItIsWrittenAsTheControlPlaneReadsIt(t *testing.T) {
	top := t.TempDir()
	odd := filepath.Join(top, "odd\xff\n")
	write(t, odd, 3)
	_ = os.Chtimes(odd, time.Unix(0, 0), time.Unix(86400, 5))
	found, _ := Of(top, plenty)
	text, err := json.Marshal(found)
	wanted := `{"files":1,"folders":0,"size_bytes":3,"entries":[["odd` + "\uFFFD" + `\n","file",3,"1970-01-02T00:00:00+00:00"]],"counted":true}`
	if err != nil || string(text) != wanted {
		t.Errorf("%s %v", text, err)
	}
	if moment(time.Unix(1<<40, 0)) != time.Unix(0, 0) {
		t.Error("a date that no calendar has")
	}
}

func TestWhatIsNoFolderIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	write(t, path, 1)
	for _, top := range []string{path, path + "-not-there"} {
		if _, err := Of(top, plenty); err == nil {
			t.Error(top)
		}
	}
}
