"""A real SSH server (see warm_server.py) and the system's own OpenSSH client."""

import fcntl
import json
import os
import select
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh
import pyte

Completed = subprocess.CompletedProcess[bytes]


@dataclass
class Server:
    port: int
    pid: int
    milliseconds_to_banner: float
    home: Path
    folder: Path
    """Short enough for unix sockets; removed afterwards."""
    key: Path
    known_hosts: Path
    authorized_keys: Path
    messages: Path
    late_imports: Path

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

    @property
    def address(self) -> str:
        return "dev@127.0.0.1"


StartServer = Callable[..., Server]
"""Takes changes to the configuration."""


class WarmProcess:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("sshd_zygote.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )

    def start_server(self, home: Path, folder: Path, changes: dict[str, Any]) -> Server:
        host_key = asyncssh.generate_private_key("ssh-ed25519")
        user_key = asyncssh.generate_private_key("ssh-ed25519")
        paths = {name: folder / name for name in ("key", "known_hosts", "authorized_keys", "messages", "late_imports")}
        paths["key"].write_bytes(user_key.export_private_key())
        paths["key"].chmod(0o600)
        paths["authorized_keys"].write_bytes(user_key.export_public_key())
        settings = {
            "host_key": host_key.export_private_key().decode(),
            "authorized_keys_path": str(paths["authorized_keys"]),
            "home": str(home),
            "messages_path": str(paths["messages"]),
            "late_imports": str(paths["late_imports"]),
            "environment": {"GPU_DEV_TEST": "yes", "TMPDIR": str(folder)},
        }
        answer = self._ask({**settings, **changes})
        public = host_key.export_public_key().decode()
        paths["known_hosts"].write_text(f"[127.0.0.1]:{answer['port']} {public}")
        return Server(answer["port"], answer["pid"], answer["milliseconds"], home, folder, **paths)

    def stop_server(self, server: Server) -> None:
        self._ask({"stop": server.pid})

    def close(self) -> None:
        self._process.communicate(timeout=20)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def children_of(pid: int) -> list[int]:
    """Running or not: also those that ended and were not waited for."""
    found = subprocess.run(["ps", "-A", "-o", "ppid=,pid="], capture_output=True, check=True, text=True).stdout
    pairs = (line.split() for line in found.splitlines())
    return [int(child) for parent, child in pairs if int(parent) == pid]


def eventually(claim: Callable[[], object], within: float = 30.0) -> None:
    """Wait until the claim is true."""
    deadline = time.monotonic() + within
    while not claim():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


class Screen:
    """A person's terminal: a program (ssh) on a pseudo-terminal, and what its screen shows."""

    _ON_ITS_TERMINAL = "import os, sys; os.login_tty(0); os.execvp(sys.argv[1], sys.argv[1:])"

    def __init__(self, command: list[str | bytes], columns: int = 80, rows: int = 24) -> None:
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self.transcript = b""
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
        self._screen.resize(rows, columns)

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    def wait_for(self, text: str, within: float = 30.0) -> None:
        self._read_until(lambda: text in self.text, within, f"{text!r} did not appear")

    def wait_for_end(self, within: float = 30.0) -> int:
        self._read_until(lambda: self.process.poll() is not None, within, "it did not end")
        return self.process.wait()

    def _read_until(self, claim: Callable[[], bool], within: float, complaint: str) -> None:
        deadline = time.monotonic() + within
        while True:
            self._read()
            if claim():
                return
            assert time.monotonic() < deadline, f"{complaint}; the screen shows:\n{self.text}"

    def _read(self) -> None:
        if select.select([self._master], [], [], 0.02)[0]:
            with suppress(OSError):  # EIO: the program has ended
                data = os.read(self._master, 65536)
                self.transcript += data
                self._stream.feed(data)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)


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
