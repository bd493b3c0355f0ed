"""The real program, started as a process, alone or on a terminal of its own."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from dataclasses import dataclass, field
from pathlib import Path

import pyte

from support.client.fake_api import KEY, FakeApi
from support.system.warm_programs import CLIENT, can_run_warm, run_warm

Completed = subprocess.CompletedProcess[str]
# The first terminal a new session opens is its own, the one whose Ctrl-C it hears.
_TAKE_TERMINAL = "import os, sys; os.close(os.open(os.ttyname(0), os.O_RDWR)); os.execv(sys.argv[1], sys.argv[1:])"


@dataclass
class Cli:
    home: Path
    api: FakeApi | None = None
    env: dict[str, str] = field(default_factory=dict)
    program: list[str] = field(default_factory=lambda: CLIENT.command)

    def environment(self, changes: dict[str, str | None] | None = None) -> dict[str, str]:
        """Nothing of whoever runs the tests, save where programs are found."""
        env: dict[str, str | None] = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.home),
            "TERM": "xterm-256color",
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
        }
        if self.api is not None:
            env |= {"GPU_DEV_API_URL": self.api.url, "GPU_DEV_API_KEY": KEY}
        env |= self.env | (changes or {})
        return {name: value for name, value in env.items() if value is not None}

    def run(
        self, *arguments: str | bytes, stdin: str = "", env: dict[str, str | None] | None = None, timeout: float = 60
    ) -> Completed:
        environment = self.environment(env)
        if self.program == CLIENT.command and can_run_warm(environment):
            said = [os.fsdecode(argument) for argument in arguments]
            return run_warm(CLIENT, said, environment, stdin=stdin, cwd=self.home, timeout=timeout)
        return subprocess.run(
            [*self.program, *arguments],
            input=stdin,
            env=environment,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=timeout,
            check=False,
            cwd=self.home,
        )

    def start(self, *arguments: str, env: dict[str, str | None] | None = None) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*self.program, *arguments],
            env=self.environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.home,
        )

    def terminal(self, *arguments: str, env: dict[str, str | None] | None = None, columns: int = 100) -> "Terminal":
        return Terminal([*self.program, *arguments], self.environment(env), columns)


class Terminal:
    """A program on a terminal, as somebody sits before it: what stands on the screen, and keys to press."""

    def __init__(self, command: list[str], env: dict[str, str], columns: int = 100, lines: int = 40) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self._fd, theirs = pty.openpty()
        self.resize(columns, lines)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, *command],
            env=env,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    def wait_for(self, *texts: str, seconds: float = 30.0) -> str:
        """Until all of this stands on the screen at once."""
        deadline = time.monotonic() + seconds
        while not all(text in self.text for text in texts):
            if not self._read(deadline - time.monotonic()):
                raise AssertionError(f"never saw {texts} on the screen; it shows:\n{self.text}")
        return self.text

    def read_some(self, seconds: float = 30.0) -> None:
        """Whatever the program draws next."""
        assert self._read(seconds), f"the program has gone; the screen shows:\n{self.text}"

    def press(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def interrupt(self) -> None:
        self.press("\x03")

    def resize(self, columns: int, lines: int = 40) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def wait(self, seconds: float = 30.0) -> int:
        """The exit code."""
        deadline = time.monotonic() + seconds
        while self._read(deadline - time.monotonic()):
            pass
        return self._process.wait(max(1.0, deadline - time.monotonic()))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._fd)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, seconds: float) -> bool:
        """False: the program has gone. Raises when nothing came in time."""
        if not select.select([self._fd], [], [], max(0.0, seconds))[0]:
            raise AssertionError(f"nothing more came; the screen shows:\n{self.text}")
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # what Linux says when the other side is closed
            data = b""
        self.raw += data
        self._stream.feed(data)
        return bool(data)
