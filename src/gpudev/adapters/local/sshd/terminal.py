"""Pseudo-terminals with the client's size and modes (RFC 4254, section 8). It knows no processes."""

import fcntl
import os
import struct
import termios
from collections.abc import Mapping
from dataclasses import dataclass

import asyncssh

Size = tuple[int, int, int, int]
"""Columns, rows, width and height in pixels, as SSH orders them."""

_IFLAG, _OFLAG, _CFLAG, _LFLAG, _ISPEED, _OSPEED, _CC = range(7)
_CONTROL_CHARACTERS = (
    "VINTR VQUIT VERASE VKILL VEOF VEOL VEOL2 VSTART VSTOP VSUSP VDSUSP VREPRINT VWERASE VLNEXT VSTATUS VDISCARD"
)
_FLAGS = {
    _IFLAG: "IGNPAR PARMRK INPCK ISTRIP INLCR IGNCR ICRNL IUCLC IXON IXANY IXOFF IMAXBEL IUTF8",
    _LFLAG: "ISIG ICANON XCASE ECHO ECHOE ECHOK ECHONL NOFLSH TOSTOP IEXTEN ECHOCTL ECHOKE PENDIN",
    _OFLAG: "OPOST OLCUC ONLCR OCRNL ONOCR ONLRET",
    _CFLAG: "PARENB PARODD",
}
_CHARACTER_SIZES = {asyncssh.PTY_CS7: termios.CS7, asyncssh.PTY_CS8: termios.CS8}
_SPEEDS = {asyncssh.PTY_OP_ISPEED: _ISPEED, asyncssh.PTY_OP_OSPEED: _OSPEED}
_IUTF8 = 0x4000  # the same on Linux and macOS; Python's termios does not name it everywhere
_DISABLED = 255  # in RFC 4254: the control character is disabled


def _opcode(name: str) -> int:
    opcode: int = getattr(asyncssh, "PTY_WERASE" if name == "VWERASE" else f"PTY_{name}")
    return opcode


_INDEX_OF_CHARACTER = {
    _opcode(name): getattr(termios, name) for name in _CONTROL_CHARACTERS.split() if hasattr(termios, name)
}
_BIT_OF_FLAG = {
    _opcode(name): (word, getattr(termios, name, _IUTF8))
    for word, names in _FLAGS.items()
    for name in names.split()
    if hasattr(termios, name) or name == "IUTF8"
}


@dataclass(frozen=True, slots=True)
class Terminal:
    """`master` is ours. `slave` is for the child, and is closed here when the child has it."""

    kind: str
    """The value of TERM."""
    master: int
    slave: int
    path: str


def open_terminal(kind: str, size: Size, modes: Mapping[int, int]) -> Terminal:
    master, slave = os.openpty()
    try:
        resize(master, size)
        attributes = termios.tcgetattr(slave)
        termios.tcsetattr(slave, termios.TCSANOW, with_modes(attributes, modes))
        os.set_blocking(master, False)
        return Terminal(kind, master, slave, os.ttyname(slave))
    except (OSError, termios.error) as error:
        os.close(master)
        os.close(slave)
        raise OSError(*error.args) from error


def resize(master: int, size: Size) -> None:
    """The kernel signals the foreground processes (SIGWINCH)."""
    columns, rows, width, height = (min(extent, 0xFFFF) for extent in size)
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, width, height))


def send_break(master: int) -> None:
    termios.tcsendbreak(master, 0)


Attributes = list[int | list[bytes | int]]
"""As termios.tcgetattr returns them."""


def with_modes(attributes: Attributes, modes: Mapping[int, int]) -> Attributes:
    """The attributes with the client's modes, as far as this system knows them."""
    words: list[int] = [word for word in attributes if isinstance(word, int)]
    characters = attributes[_CC]
    assert isinstance(characters, list)
    characters = list(characters)
    for opcode, value in modes.items():
        if opcode in _INDEX_OF_CHARACTER:
            characters[_INDEX_OF_CHARACTER[opcode]] = bytes([0 if value >= _DISABLED else value])
        elif opcode in _BIT_OF_FLAG:
            word, bit = _BIT_OF_FLAG[opcode]
            words[word] = words[word] | bit if value else words[word] & ~bit
        elif opcode in _CHARACTER_SIZES and value:
            words[_CFLAG] = (words[_CFLAG] & ~termios.CSIZE) | _CHARACTER_SIZES[opcode]
        elif opcode in _SPEEDS:
            words[_SPEEDS[opcode]] = getattr(termios, f"B{value}", words[_SPEEDS[opcode]])
    return [*words, characters]
