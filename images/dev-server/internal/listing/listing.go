// Package listing lists a folder so that its owner can recognise it: totals, and the names nearest to the top. It
// follows no links, does not cross mounts, and its memory is limited, however many files there are.
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

// atOnce names of a folder are read between checks of the time.
const atOnce = 512

// mostWaiting limits the queue of folders; with more, the listing is incomplete.
const mostWaiting = 500_000

// Limits of one listing.
type Limits struct {
	Entries int
	Within  time.Duration
}

// Entry is encoded as [path, kind, size, date], the format of the control plane.
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
	// Counted is false if something could not be read, or not in time: the totals are too low.
	Counted bool `json:"counted"`
}

// MarshalJSON encodes an entry as a list, to save space.
func (entry Entry) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{entry.Path, entry.Kind, entry.Size, entry.ModifiedAt.UTC().Format("2006-01-02T15:04:05+00:00")})
}

type waiting struct {
	path  string
	depth int
}

type scan struct {
	Contents
	limits Limits
	until  time.Time
	device uint64
	queue  []waiting
}

// Of lists the folder top, breadth first, so that a short time still shows the most.
func Of(top string, limits Limits) (Contents, error) {
	info, err := os.Lstat(top)
	if err != nil {
		return Contents{}, err
	}
	if !info.IsDir() {
		return Contents{}, errors.New(top + " is not a folder")
	}
	listing := scan{
		Contents: Contents{Entries: []Entry{}, Counted: true},
		limits:   limits, until: time.Now().Add(limits.Within), device: deviceOf(info), queue: []waiting{{"", 0}},
	}
	for len(listing.queue) > 0 && listing.hasTime() {
		next := listing.queue[0]
		listing.queue = listing.queue[1:]
		listing.folder(top, next)
	}
	return listing.Contents, nil
}

func (listing *scan) hasTime() bool {
	if time.Now().Before(listing.until) {
		return true
	}
	listing.Counted = false
	return false
}

func (listing *scan) folder(top string, at waiting) {
	// Do not block on a pipe or follow a link in place of a folder.
	flags := syscall.O_DIRECTORY | syscall.O_NOFOLLOW | syscall.O_NONBLOCK
	folder, err := os.OpenFile(filepath.Join(top, at.path), os.O_RDONLY|flags, 0)
	if err != nil {
		listing.Counted = listing.Counted && errors.Is(err, fs.ErrNotExist)
		return
	}
	defer folder.Close()
	for listing.hasTime() {
		entries, err := folder.ReadDir(atOnce)
		for _, entry := range entries {
			listing.entry(at, entry)
		}
		if err != nil || len(entries) == 0 {
			listing.Counted = listing.Counted && (err == nil || errors.Is(err, io.EOF))
			return
		}
	}
}

func (listing *scan) entry(at waiting, found fs.DirEntry) {
	info, err := found.Info()
	if err != nil { // removed, or not accessible
		listing.Counted = listing.Counted && errors.Is(err, fs.ErrNotExist)
		return
	}
	path := filepath.Join(at.path, found.Name())
	kind, size := kindOf(info.Mode()), int64(0)
	switch kind {
	case "folder":
		listing.Folders++
		listing.later(waiting{path, at.depth + 1}, info)
	case "file":
		size = info.Size()
		listing.SizeBytes += size
		listing.Files++
	default:
		listing.Files++
	}
	listing.keep(Entry{readable(path), kind, size, moment(info.ModTime()), at.depth})
}

func (listing *scan) later(folder waiting, info fs.FileInfo) {
	if deviceOf(info) != listing.device { // a mount, not on this disk
		return
	}
	if len(listing.queue) >= mostWaiting {
		listing.Counted = false
		return
	}
	listing.queue = append(listing.queue, folder)
}

func (listing *scan) keep(entry Entry) {
	place, _ := slices.BinarySearchFunc(listing.Entries, entry, nearer)
	if place >= listing.limits.Entries {
		return
	}
	listing.Entries = slices.Insert(listing.Entries, place, entry)
	if len(listing.Entries) > listing.limits.Entries {
		listing.Entries = listing.Entries[:listing.limits.Entries]
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

// moment limits times to what can be encoded: users can set any.
func moment(modified time.Time) time.Time {
	if year := modified.UTC().Year(); year < 1 || year > 9999 {
		return time.Unix(0, 0)
	}
	return modified
}

// readable replaces invalid UTF-8 in file names.
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
