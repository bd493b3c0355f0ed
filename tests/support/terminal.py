"""A person at a terminal: a program on a pseudo-terminal, its screen as a terminal emulator shows it."""

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from types import TracebackType

import pyte


class Terminal:
    def __init__(self, command: list[str], *, rows: int, columns: int, env: dict[str, str] | None = None) -> None:
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self._master, slave = pty.openpty()
        self._set_size(rows, columns)
        environment = {**(env if env is not None else os.environ), "TERM": "xterm"}
        self._process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509 - the tests that use it start no threads
        )  # fmt: skip
        os.close(slave)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def lines(self) -> list[str]:
        return [line.rstrip() for line in self._screen.display]

    def text(self) -> str:
        return "\n".join(self.lines())

    def wait_for(self, text: str, seconds: float = 15) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.text():
            assert time.monotonic() < deadline, f"{text!r} never appeared:\n{self.text()}"
            self._read(0.1)

    def resize(self, *, rows: int, columns: int) -> None:
        self._screen.resize(rows, columns)
        self._set_size(rows, columns)

    def end(self, seconds: float = 15) -> int:
        deadline = time.monotonic() + seconds
        while self._process.poll() is None:
            assert time.monotonic() < deadline, f"it did not end:\n{self.text()}"
            self._read(0.1)
        return self._process.returncode

    def _read(self, seconds: float) -> None:
        if select.select([self._master], [], [], seconds)[0]:
            with contextlib.suppress(OSError):  # the other side has gone
                self._stream.feed(os.read(self._master, 65536))

    def _set_size(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
