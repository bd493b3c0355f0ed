"""Ends a dev server when the command has ended for which it was reserved: said where the control plane looks, then the
SSH server leaves with an exit code of its own, and the first process ends everything.

Nothing is remembered here: what was begun and how it ended is in the home, so that an SSH server that was started again
knows as much. What the command was is not known here.
"""

import json
import os
import stat
from contextlib import suppress
from pathlib import Path

from gpudev.adapters.local.sshd.sshd_config import SshdConfig
from gpudev.domain.reservations.command_exit import ENDS, EXIT, FOLDER, OUTPUT, PROCESS, last_lines

ENDED_WITH_IT = 86
"""The SSH server's exit code then."""
_LINGERS_S = 3.0
"""So long whoever follows its output can read the last of it, and its exit code."""
_TAIL = 16 * 1024
_SHORT = 256


class RunWatch:
    def __init__(self, config: SshdConfig) -> None:
        self._folder = Path(config.home, FOLDER)
        self._reservation_id = config.environment.get("GPU_DEV_RESERVATION_ID", "")
        self._report = config.run_end_report
        self._over_since: float | None = None

    def look(self, now: float) -> None:
        """Now and then. Does not return once it is over."""
        if self._report is None or not self.is_over():
            self._over_since = None
            return
        if self._over_since is None:
            self._over_since = now
        if now - self._over_since >= _LINGERS_S:
            self._tell(self._report)
            os._exit(ENDED_WITH_IT)

    def is_over(self) -> bool:
        if not self._reservation_id or self._read(ENDS).strip() != self._reservation_id.encode():
            return False  # none was begun, another reservation's on this disk, or one that keeps it
        return bool(self._read(EXIT)) or not _is_running(self._read(PROCESS))

    def _tell(self, report: int) -> None:
        code = self._read(EXIT).strip()
        written = self._read(OUTPUT, _TAIL).decode(errors="replace")
        told = {"exit_code": int(code) if code.isdigit() else None, "last": "\n".join(last_lines(written))}
        text = json.dumps(told).encode()
        os.pwrite(report, text, 0)
        os.ftruncate(report, len(text))

    def _read(self, name: str, most: int = _SHORT) -> bytes:
        """The end of a file; nothing where there is none, or something that is no file."""
        with suppress(OSError):
            fd = os.open(self._folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                found = os.fstat(fd)
                if stat.S_ISREG(found.st_mode):
                    return os.pread(fd, most, max(0, found.st_size - most))
            finally:
                os.close(fd)
        return b""


def _is_running(process: bytes) -> bool:
    """Of a dev server's earlier life a number may be left that somebody else has by now."""
    if not process.strip().isdigit():
        return False
    pid = int(process)
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError, OverflowError):
        return False
    try:
        return FOLDER.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return not Path("/proc/self").exists()  # no such thing on this system
    except OSError:
        return False
