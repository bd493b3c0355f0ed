"""Long-running programs of one folder: each in a process group of its own, with a log, and never left behind.

Ctrl-C does not reach them (their owner stops them in order). Should the owner die without doing so, a reaper notices
that the pipe between them has closed, kills what is left by the files NAME.pid and runs one last command.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

_PATIENCE_SECONDS = 8.0


class Processes:
    def __init__(self, folder: Path, last_command: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self._last_command = last_command
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._reaper: subprocess.Popen[bytes] | None = None

    def start(self, name: str, *command: str, environment: dict[str, str] | None = None) -> None:
        self._ensure_reaper()
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._running[name] = process
        (self.folder / f"{name}.pid").write_text(json.dumps({"pid": process.pid, "command": command}))

    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._running.items()}

    def check(self) -> None:
        """Raises with the end of its log when one of them has ended by itself."""
        for name, process in self._running.items():
            if process.poll() is not None:
                raise RuntimeError(f"{name} ended with {process.returncode}:\n{self.log_tail(name)}")

    def log_tail(self, name: str, lines: int = 15) -> str:
        return "\n".join((self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-lines:])

    def stop(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        process = self._running.pop(name, None)
        if process is None:
            return
        _signal_group(process.pid, how)
        try:
            process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            _signal_group(process.pid, signal.SIGKILL)
            process.wait()
        (self.folder / f"{name}.pid").unlink(missing_ok=True)

    def stop_all(self, how: signal.Signals = signal.SIGTERM) -> None:
        """The last one started goes first."""
        for name in reversed(list(self._running)):
            self.stop(name, how)
        if self._reaper is not None and self._reaper.stdin is not None:
            self._reaper.stdin.close()
            self._reaper.wait()
            self._reaper = None

    def _ensure_reaper(self) -> None:
        if self._reaper is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._reaper = subprocess.Popen(
                [sys.executable, __file__, str(self.folder), *self._last_command],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )


def _signal_group(pid: int, how: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, how)


def reap(folder: Path, last_command: list[str]) -> None:
    """Waits until the owner is gone, then kills what still runs. A number that means another process by now is left."""
    sys.stdin.buffer.read()
    killed = False
    for file in folder.glob("*.pid"):
        noted = json.loads(file.read_text() or "{}")
        with contextlib.suppress(psutil.Error, KeyError):
            if psutil.Process(noted["pid"]).cmdline() == noted["command"]:
                _signal_group(noted["pid"], signal.SIGKILL)
                killed = True
        file.unlink(missing_ok=True)
    if last_command:
        time.sleep(1.0 if killed else 0.0)
        subprocess.run(last_command, check=False)


if __name__ == "__main__":
    for deaf in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(deaf, signal.SIG_IGN)
    reap(Path(sys.argv[1]), sys.argv[2:])
