// Package terminal creates pseudo-terminals with the size and modes of a client (RFC 4254, section 8). It knows nothing
// about processes.
package terminal

import (
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Size is in characters and pixels, in the order of SSH.
type Size struct{ Columns, Rows, Width, Height uint32 }

// Terminal is a pair: Master is ours, Slave is for the child and closed here after its start.
type Terminal struct {
	Master *os.File
	Slave  *os.File
	Path   string
}

// Open creates one that belongs to uid; others can write to it only through the group of devpts.
func Open(uid int, size Size, modes []byte) (*Terminal, error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("opening /dev/ptmx: %w", err)
	}
	master := os.NewFile(uintptr(fd), "/dev/ptmx")
	slave, path, err := openSlave(fd)
	if err != nil {
		_ = master.Close()
		return nil, err
	}
	terminal := &Terminal{Master: master, Slave: slave, Path: path}
	if err := terminal.settle(uid, size, modes); err != nil {
		_ = master.Close()
		_ = slave.Close()
		return nil, err
	}
	return terminal, nil
}

func openSlave(master int) (*os.File, string, error) {
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return nil, "", fmt.Errorf("unlocking the terminal: %w", err)
	}
	number, err := unix.IoctlGetUint32(master, unix.TIOCGPTN)
	if err != nil {
		return nil, "", fmt.Errorf("reading the terminal's number: %w", err)
	}
	path := fmt.Sprintf("/dev/pts/%d", number)
	slave, err := unix.Open(path, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, "", fmt.Errorf("opening %s: %w", path, err)
	}
	return os.NewFile(uintptr(slave), path), path, nil
}

func (terminal *Terminal) settle(uid int, size Size, modes []byte) error {
	fd := int(terminal.Slave.Fd())
	if os.Geteuid() == 0 {
		if err := unix.Fchown(fd, uid, -1); err != nil {
			return fmt.Errorf("changing the terminal's owner: %w", err)
		}
		if err := unix.Fchmod(fd, 0o620); err != nil {
			return fmt.Errorf("changing the terminal's mode: %w", err)
		}
	}
	attributes, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return fmt.Errorf("reading the terminal's modes: %w", err)
	}
	applyModes(attributes, modes)
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, attributes); err != nil {
		return fmt.Errorf("setting the terminal's modes: %w", err)
	}
	return Resize(terminal.Master, size)
}

// Resize changes the size; the kernel signals the foreground processes (SIGWINCH).
func Resize(master *os.File, size Size) error {
	return control(master, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{
			Row: clamp(size.Rows), Col: clamp(size.Columns), Xpixel: clamp(size.Width), Ypixel: clamp(size.Height),
		})
	})
}

// Columns is the width of the terminal; 0 if unknown.
func Columns(master *os.File) int {
	columns := 0
	_ = control(master, func(fd int) error {
		size, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
		if err == nil {
			columns = int(size.Col)
		}
		return err
	})
	return columns
}

// Redraw makes the foreground programs redraw, as after a change of size.
func Redraw(master *os.File) {
	if group := Foreground(master); group > 0 {
		_ = unix.Kill(-group, unix.SIGWINCH)
	}
}

// Foreground is the foreground process group of the terminal; 0 if there is none.
func Foreground(master *os.File) int {
	group := 0
	_ = control(master, func(fd int) (err error) {
		group, err = unix.IoctlGetInt(fd, unix.TIOCGPGRP)
		return err
	})
	return group
}

// Break sends a break, for the client's break key.
func Break(master *os.File) error {
	return control(master, func(fd int) error { return unix.IoctlSetInt(fd, unix.TCSBRK, 0) })
}

// control keeps the file in Go's poller; Fd() would remove it.
func control(file *os.File, work func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	if err := raw.Control(func(fd uintptr) { result = work(int(fd)) }); err != nil {
		return err
	}
	return result
}

func clamp(extent uint32) uint16 { return uint16(min(extent, 0xFFFF)) }

const (
	endOfModes       = 0
	firstUnknownMode = 160 // modes from here on have unknown length
	switchedOff      = 255 // RFC 4254: the control character is disabled
)

// applyModes sets the attributes that the client sends and this system knows.
func applyModes(attributes *unix.Termios, modes []byte) {
	for len(modes) >= 5 && modes[0] != endOfModes && modes[0] < firstUnknownMode {
		applyMode(attributes, modes[0], binary.BigEndian.Uint32(modes[1:]))
		modes = modes[5:]
	}
}

func applyMode(attributes *unix.Termios, mode byte, value uint32) {
	if index, ok := controlCharacters[mode]; ok {
		if value >= switchedOff {
			value = 0
		}
		attributes.Cc[index] = byte(value)
	} else if flag, ok := flags[mode]; ok {
		word := flag.word(attributes)
		*word &^= flag.bit
		if value != 0 {
			*word |= flag.bit
		}
	}
}

var controlCharacters = map[byte]int{
	1: unix.VINTR, 2: unix.VQUIT, 3: unix.VERASE, 4: unix.VKILL, 5: unix.VEOF, 6: unix.VEOL, 7: unix.VEOL2,
	8: unix.VSTART, 9: unix.VSTOP, 10: unix.VSUSP, 12: unix.VREPRINT, 13: unix.VWERASE, 14: unix.VLNEXT,
	16: unix.VSWTC, 18: unix.VDISCARD,
}

type flag struct {
	word func(*unix.Termios) *uint32
	bit  uint32
}

func input(bit uint32) flag { return flag{func(t *unix.Termios) *uint32 { return &t.Iflag }, bit} }
func local(bit uint32) flag { return flag{func(t *unix.Termios) *uint32 { return &t.Lflag }, bit} }
func output(bit uint32) flag {
	return flag{func(t *unix.Termios) *uint32 { return &t.Oflag }, bit}
}
func line(bit uint32) flag { return flag{func(t *unix.Termios) *uint32 { return &t.Cflag }, bit} }

// The character size stays: eight bits on every terminal today.
var flags = map[byte]flag{
	30: input(unix.IGNPAR), 31: input(unix.PARMRK), 32: input(unix.INPCK), 33: input(unix.ISTRIP),
	34: input(unix.INLCR), 35: input(unix.IGNCR), 36: input(unix.ICRNL), 37: input(unix.IUCLC),
	38: input(unix.IXON), 39: input(unix.IXANY), 40: input(unix.IXOFF), 41: input(unix.IMAXBEL),
	42: input(unix.IUTF8),
	50: local(unix.ISIG), 51: local(unix.ICANON), 52: local(unix.XCASE), 53: local(unix.ECHO),
	54: local(unix.ECHOE), 55: local(unix.ECHOK), 56: local(unix.ECHONL), 57: local(unix.NOFLSH),
	58: local(unix.TOSTOP), 59: local(unix.IEXTEN), 60: local(unix.ECHOCTL), 61: local(unix.ECHOKE),
	62: local(unix.PENDIN),
	70: output(unix.OPOST), 71: output(unix.OLCUC), 72: output(unix.ONLCR), 73: output(unix.OCRNL),
	74: output(unix.ONOCR), 75: output(unix.ONLRET),
	92: line(unix.PARENB), 93: line(unix.PARODD),
}
