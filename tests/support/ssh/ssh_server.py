"""An SSH server as its clients meet it: the system's own ssh, scp and sftp, and a person's terminal."""

import fcntl
import os
import select
import socket
import struct
import subprocess
import sys
import termios
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import asyncssh
import pyte
import pytest

Completed = subprocess.CompletedProcess[bytes]
MEBIBYTE = 1024 * 1024


@dataclass
class SshServer(ABC):
    port: int
    pid: int
    home: Path
    folder: Path
    """Short enough for unix sockets; removed afterwards."""
    key: Path
    known_hosts: Path
    authorized_keys: Path

    @property
    @abstractmethod
    def uid(self) -> int:
        """Whose sessions it opens."""

    @abstractmethod
    def inside(self, path: Path) -> str:
        """What sessions call a path of this machine."""

    @abstractmethod
    def outside(self, path: str) -> Path:
        """The path on this machine of what sessions call so."""

    @abstractmethod
    def set_authorized_keys(self, text: str) -> None: ...

    @abstractmethod
    def send_message(self, text: str, greets_for: timedelta = timedelta(hours=1)) -> None:
        """To all open terminals; whoever logs in later is greeted with it for so long."""

    def settings(self, *keys: Path) -> list[str]:
        """What ssh, scp and sftp alike understand."""
        return [
            *("-F", "none", *(part for key in keys or (self.key,) for part in ("-i", str(key)))),
            *("-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none"),
            *("-o", "StrictHostKeyChecking=yes", "-o", f"UserKnownHostsFile={self.known_hosts}"),
            *("-o", "BatchMode=yes", "-o", "ConnectTimeout=20"),
        ]

    def command(
        self, *arguments: str | bytes, options: tuple[str, ...] = (), keys: tuple[Path, ...] = (), user: str = "dev"
    ) -> list[str | bytes]:
        return ["ssh", *self.settings(*keys), "-p", str(self.port), *options, f"{user}@127.0.0.1", *arguments]

    def ssh(
        self,
        *arguments: str | bytes,
        options: tuple[str, ...] = (),
        keys: tuple[Path, ...] = (),
        user: str = "dev",
        stdin: bytes = b"",
    ) -> Completed:
        command = self.command(*arguments, options=options, keys=keys, user=user)
        return subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)

    def lets_in(self, *keys: Path, user: str = "dev") -> bool:
        return self.ssh("echo in", keys=keys, user=user).stdout == b"in\n"

    def start(self, *arguments: str, options: tuple[str, ...] = (), **more: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.command(*arguments, options=options), **more)

    def run(self, program: str, *arguments: str, stdin: bytes = b"") -> Completed:
        """scp or sftp."""
        return subprocess.run(
            [program, *self.settings(), "-P", str(self.port), *arguments],
            input=stdin,
            capture_output=True,
            timeout=60,
            check=False,
        )

    def sftp(self, *commands: str) -> Completed:
        return self.run("sftp", "-b", "-", self.address, stdin="\n".join(commands).encode() + b"\n")

    @property
    def address(self) -> str:
        return "dev@127.0.0.1"


class StartSsh(Protocol):
    def __call__(
        self, *, login_seconds: float = ..., keepalive_seconds: float = ..., greeting: str | None = ...
    ) -> SshServer: ...


class Screen:
    """A person's terminal: a program (ssh) on a pseudo-terminal, and what its screen shows."""

    _ON_ITS_TERMINAL = "import os, sys; os.login_tty(0); os.execvp(sys.argv[1], sys.argv[1:])"

    def __init__(self, command: list[str | bytes], columns: int = 80, rows: int = 24) -> None:
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self.transcript = b""
        self._drawn = 0
        """How much of the transcript the screen shows."""
        self._master, slave = os.openpty()
        self.resize(columns, rows)
        self.process = subprocess.Popen(
            [sys.executable, "-c", self._ON_ITS_TERMINAL, *command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm-256color"},
        )
        os.close(slave)

    def type(self, text: str | bytes) -> None:
        os.write(self._master, text.encode() if isinstance(text, str) else text)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._draw()
        self._screen.resize(rows, columns)

    @property
    def text(self) -> str:
        self._draw()
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    def wait_for(self, text: str, within: float = 30.0) -> None:
        self.wait_until(lambda: text in self.text, f"{text!r} did not appear", within)

    def wait_for_prompt_after(self, line: str) -> None:
        """Only then the shell reads keys itself: before, they are the kernel's, where some mean something else."""
        self.wait_until(lambda: f"\n{line}\n" in f"\n{self.text}" and self.text.endswith(("$", "#")))

    def wait_for_end(self, within: float = 30.0) -> int:
        self.wait_until(lambda: self.process.poll() is not None, "it did not end", within)
        return self.process.wait()

    def wait_until(self, claim: Callable[[], bool], complaint: str = "it was never so", within: float = 30.0) -> None:
        deadline = time.monotonic() + within
        while True:
            self._read()
            if claim():
                return
            assert time.monotonic() < deadline, f"{complaint}; the screen shows:\n{self.text}"

    def _read(self) -> None:
        if select.select([self._master], [], [], 0.02)[0]:
            with suppress(OSError):  # EIO: the program has ended
                self.transcript += os.read(self._master, 65536)

    def _draw(self) -> None:
        """Not while it is read: megabytes take a busy machine longer to draw than tests wait for an end."""
        self._stream.feed(self.transcript[self._drawn :])
        self._drawn = len(self.transcript)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)


OpenScreen = Callable[..., Screen]


@contextmanager
def opening_screens() -> Iterator[OpenScreen]:
    """Screens that are closed at the end."""
    screens: list[Screen] = []

    def open_one(server: SshServer, *arguments: str, options: tuple[str, ...] = (), **size: int) -> Screen:
        screens.append(Screen(server.command(*arguments, options=options), **size))
        return screens[-1]

    yield open_one
    for screen in screens:
        screen.close()


def make_key(folder: Path, algorithm: str = "ssh-ed25519", name: str = "other") -> tuple[Path, str]:
    """A private key's file, and the public key."""
    key = asyncssh.generate_private_key(algorithm)
    path = folder / name
    path.write_bytes(key.export_private_key())
    path.chmod(0o600)
    return path, key.export_public_key().decode()


@contextmanager
def logging_in_at_once(port: int, count: int) -> Iterator[None]:
    """So many have begun, and none of them is cut off meanwhile."""
    half_way = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(count)]
    try:
        for one in half_way:
            one.sendall(b"SSH-2.0-OpenSSH_9.9\r\n")
            assert one.recv(4) == b"SSH-"
        yield
        for one in half_way:
            one.setblocking(False)
            with suppress(BlockingIOError):  # nothing more was said, and it is open
                while True:
                    assert one.recv(65536), "one that was logging in was cut off"
    finally:
        for one in half_way:
            one.close()


def children_of(pid: int) -> list[int]:
    """Running or not: also those that ended and were not waited for."""
    found = subprocess.run(["ps", "-A", "-o", "ppid=,pid="], capture_output=True, check=True, text=True).stdout
    pairs = (line.split() for line in found.splitlines())
    return [int(child) for parent, child in pairs if int(parent) == pid]


def descriptors_of(pid: int) -> set[int]:
    return {int(entry.name) for entry in _in_proc(pid, "fd").iterdir()}


def memory_of(pid: int, kind: str = "VmRSS") -> int:
    lines = _in_proc(pid, "status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(kind)).split()[1]) * 1024


def _in_proc(pid: int, name: str) -> Path:
    path = Path(f"/proc/{pid}/{name}")
    if not path.exists():
        pytest.skip(f"needs /proc to see the {name} of a process")
    return path
