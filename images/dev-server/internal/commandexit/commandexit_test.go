package commandexit

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpudev/devserver/internal/process"
)

const reservation = "7f3c0d52-0000-4000-8000-000000000001"

func begun(t *testing.T, files map[string]string) Watch {
	t.Helper()
	home := t.TempDir()
	if err := os.Mkdir(filepath.Join(home, folder), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(home, folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Watch{home, reservation, process.Identity{UID: os.Getuid(), GID: os.Getgid()}}
}

func TestItIsOverOnlyForTheReservationThatEndsWithIt(t *testing.T) {
	over := map[string]string{endsIn: reservation, exitIn: "3\n", processIn: "1\n", outputIn: "one\ntwo\n"}
	report, isOver := begun(t, over).Check()
	if !isOver || report.ExitCode == nil || *report.ExitCode != 3 || report.Last != "one\ntwo" {
		t.Error(report, isOver)
	}
	for _, ends := range []string{"", "another", reservation + "0"} {
		over[endsIn] = ends
		if report, isOver := begun(t, over).Check(); isOver {
			t.Error(ends, report)
		}
	}
	watch := begun(t, map[string]string{endsIn: "", exitIn: "0"})
	watch.ReservationID = ""
	if report, isOver := watch.Check(); isOver {
		t.Error(report)
	}
}

func TestOneWhoseNumberSomebodyElseHasWasEndedFromOutside(t *testing.T) {
	files := map[string]string{endsIn: reservation, processIn: "1\n", outputIn: "up\n"}
	if report, isOver := begun(t, files).Check(); !isOver || report.ExitCode != nil || report.Last != "up" {
		t.Error(report, isOver)
	}
	for _, exit := range []string{"300", "-1", "x"} {
		files[exitIn] = exit
		if report, isOver := begun(t, files).Check(); !isOver || report.ExitCode != nil {
			t.Error(exit, report, isOver)
		}
	}
}

func TestWhatIsNoFileIsNotRead(t *testing.T) {
	watch := begun(t, map[string]string{endsIn: reservation, exitIn: "0"})
	if err := os.Symlink("/etc/passwd", filepath.Join(watch.Home, folder, outputIn)); err != nil {
		t.Fatal(err)
	}
	if report, isOver := watch.Check(); !isOver || report.Last != "" {
		t.Error(report, isOver)
	}
}

func TestTheLastLinesAreThoseATerminalWouldShow(t *testing.T) {
	for written, shown := range map[string]string{
		"start\n 10%\r 50%\r100%\r\ndone":  "start\n100%\ndone",
		"\x1b[2Jgone\x07\n\xff\n":          "[2Jgone",
		strings.Repeat("x\n", 100):         strings.TrimSpace(strings.Repeat("x\n", mostLines)),
		strings.Repeat("y", 2*longestLine): strings.Repeat("y", longestLine),
	} {
		if last := lastLines([]byte(written)); last != shown {
			t.Errorf("%q: %q", written, last)
		}
	}
}

func TestWhatIsToldFitsWhereItIsWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	report := Report{Last: lastLines([]byte(strings.Repeat(strings.Repeat(`"\`, 150)+"\n", 100)))}
	if report.Write(path) == nil {
		t.Error("it must be there already")
	}
	if err := os.WriteFile(path, []byte(strings.Repeat("old", 5000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := report.Write(path); err != nil {
		t.Fatal(err)
	}
	text, _ := os.ReadFile(path)
	var read Report
	if err := json.Unmarshal(text, &read); err != nil || read.Last != report.Last || len(text) > 4096 {
		t.Error(err, len(text))
	}
}
