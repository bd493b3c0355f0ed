// Package listing tells what is in a folder, for its owner to recognise it by: totals of everything, and the names
// nearest to the top. It follows no link, crosses into nothing that is mounted there, and holds no more than it tells and
// the folders still to be looked into, however much there is.
package listing

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"
)

// atOnce names of a folder are read before the time is looked at again.
const atOnce = 512

// mostWaiting folders are remembered to be looked into; who has more than this is told less than all.
const mostWaiting = 500_000

// Limits of one listing.
type Limits struct {
	Entries int
	Within  time.Duration
}

// Entry is written as [path, kind, size, date], as the control plane keeps it.
type Entry struct {
	Path       string
	Kind       string
	Size       int64
	ModifiedAt time.Time
	depth      int
}

// Contents of a folder.
type Contents struct {
	Files     int64   `json:"files"`
	Folders   int64   `json:"folders"`
	SizeBytes int64   `json:"size_bytes"`
	Entries   []Entry `json:"entries"`
	// Counted is false where something could not be looked at in time, or not at all: there is more than the totals say.
	Counted bool `json:"counted"`
}

// MarshalJSON writes it as a list: there are many.
func (entry Entry) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{entry.Path, entry.Kind, entry.Size, entry.ModifiedAt.UTC().Format("2006-01-02T15:04:05+00:00")})
}

type waiting struct {
	path  string
	depth int
}

type look struct {
	Contents
	limits Limits
	until  time.Time
	device uint64
	queue  []waiting
}

// Of the folder top. What is nearest to the top is looked at first, so that little time still tells the most.
func Of(top string, limits Limits) (Contents, error) {
	info, err := os.Lstat(top)
	if err != nil {
		return Contents{}, err
	}
	if !info.IsDir() {
		return Contents{}, errors.New(top + " is no folder")
	}
	looking := look{
		Contents: Contents{Entries: []Entry{}, Counted: true},
		limits:   limits, until: time.Now().Add(limits.Within), device: deviceOf(info), queue: []waiting{{"", 0}},
	}
	for len(looking.queue) > 0 && looking.hasTime() {
		next := looking.queue[0]
		looking.queue = looking.queue[1:]
		looking.folder(top, next)
	}
	return looking.Contents, nil
}

func (looking *look) hasTime() bool {
	if time.Now().Before(looking.until) {
		return true
	}
	looking.Counted = false
	return false
}

func (looking *look) folder(top string, at waiting) {
	// A pipe in a folder's place must not make us wait, nor a link lead us elsewhere.
	flags := syscall.O_DIRECTORY | syscall.O_NOFOLLOW | syscall.O_NONBLOCK
	folder, err := os.OpenFile(filepath.Join(top, at.path), os.O_RDONLY|flags, 0)
	if err != nil {
		looking.Counted = looking.Counted && errors.Is(err, fs.ErrNotExist)
		return
	}
	defer folder.Close()
	for looking.hasTime() {
		entries, err := folder.ReadDir(atOnce)
		for _, entry := range entries {
			looking.entry(at, entry)
		}
		if err != nil || len(entries) == 0 {
			looking.Counted = looking.Counted && (err == nil || errors.Is(err, io.EOF))
			return
		}
	}
}

func (looking *look) entry(at waiting, found fs.DirEntry) {
	info, err := found.Info()
	if err != nil { // taken away, or closed to us
		looking.Counted = looking.Counted && errors.Is(err, fs.ErrNotExist)
		return
	}
	path := filepath.Join(at.path, found.Name())
	kind, size := kindOf(info.Mode()), int64(0)
	switch kind {
	case "folder":
		looking.Folders++
		looking.later(waiting{path, at.depth + 1}, info)
	case "file":
		size = info.Size()
		looking.SizeBytes += size
		looking.Files++
	default:
		looking.Files++
	}
	looking.keep(Entry{readable(path), kind, size, moment(info.ModTime()), at.depth})
}

func (looking *look) later(folder waiting, info fs.FileInfo) {
	if deviceOf(info) != looking.device { // something else is mounted there; it is not on this disk
		return
	}
	if len(looking.queue) >= mostWaiting {
		looking.Counted = false
		return
	}
	looking.queue = append(looking.queue, folder)
}

func (looking *look) keep(entry Entry) {
	place, _ := slices.BinarySearchFunc(looking.Entries, entry, nearer)
	if place >= looking.limits.Entries {
		return
	}
	looking.Entries = slices.Insert(looking.Entries, place, entry)
	if len(looking.Entries) > looking.limits.Entries {
		looking.Entries = looking.Entries[:looking.limits.Entries]
	}
}

func nearer(one, other Entry) int {
	if one.depth != other.depth {
		return one.depth - other.depth
	}
	return strings.Compare(one.Path, other.Path)
}

func kindOf(mode fs.FileMode) string {
	switch {
	case mode.IsRegular():
		return "file"
	case mode.IsDir():
		return "folder"
	case mode&fs.ModeSymlink != 0:
		return "link"
	default:
		return "other"
	}
}

// moment is one that can be written down: people may set it to anything.
func moment(modified time.Time) time.Time {
	if year := modified.UTC().Year(); year < 1 || year > 9999 {
		return time.Unix(0, 0)
	}
	return modified
}

// readable: file names are bytes; what is no UTF-8 in them is shown as such.
func readable(path string) string {
	if utf8.ValidString(path) {
		return path
	}
	return strings.ToValidUTF8(path, "\uFFFD")
}

func deviceOf(info fs.FileInfo) uint64 {
	if stat, known := info.Sys().(*syscall.Stat_t); known {
		return uint64(stat.Dev)
	}
	return 0
}
