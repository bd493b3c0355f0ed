"""Ends a dev server when the reservation's command has ended.

It writes a report for the control plane. Then the SSH server exits with a special exit code, and the first process ends
the dev server. It keeps no state in memory: files in the home show whether the command was started and how it ended, so
a restarted SSH server knows the same. It does not know the command itself.
"""

import json
import os
import stat
from contextlib import suppress
from pathlib import Path

from gpudev.adapters.local.sshd.sshd_config import SshdConfig
from gpudev.domain.reservations.command_exit import (
    EXIT_FILE,
    OUTPUT_FILE,
    PID_FILE,
    RESERVATION_FILE,
    RUN_FOLDER,
    clean_last_lines,
)

EXIT_COMMAND_ENDED = 86
"""The SSH server's exit code in that case."""
_LINGER_S = 3.0
"""Time for a client that follows the output to read the rest of it and the exit code."""
_OUTPUT_TAIL_BYTES = 16 * 1024
_MAX_FILE_BYTES = 256


class CommandExitWatch:
    def __init__(self, config: SshdConfig) -> None:
        self._folder = Path(config.home, RUN_FOLDER)
        self._reservation_id = config.environment.get("GPU_DEV_RESERVATION_ID", "")
        self._report = config.command_exit_report
        self._ended_since: float | None = None

    def check(self, now: float) -> None:
        """Call it periodically. Does not return when the command has ended."""
        if self._report is None or not self.has_ended():
            self._ended_since = None
            return
        if self._ended_since is None:
            self._ended_since = now
        if now - self._ended_since >= _LINGER_S:
            self._write_report(self._report)
            os._exit(EXIT_COMMAND_ENDED)

    def has_ended(self) -> bool:
        if not self._reservation_id or self._read(RESERVATION_FILE).strip() != self._reservation_id.encode():
            return False  # no command, one of another reservation with this disk, or one that keeps the dev server
        return bool(self._read(EXIT_FILE)) or not _is_running(self._read(PID_FILE))

    def _write_report(self, report: int) -> None:
        code = self._read(EXIT_FILE).strip()
        output = self._read(OUTPUT_FILE, _OUTPUT_TAIL_BYTES).decode(errors="replace")
        fields = {"exit_code": int(code) if code.isdigit() else None, "last": "\n".join(clean_last_lines(output))}
        text = json.dumps(fields).encode()
        os.pwrite(report, text, 0)
        os.ftruncate(report, len(text))

    def _read(self, name: str, max_bytes: int = _MAX_FILE_BYTES) -> bytes:
        """The last bytes of a file. Empty: it does not exist or is not a regular file."""
        with suppress(OSError):
            fd = os.open(self._folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                found = os.fstat(fd)
                if stat.S_ISREG(found.st_mode):
                    return os.pread(fd, max_bytes, max(0, found.st_size - max_bytes))
            finally:
                os.close(fd)
        return b""


def _is_running(process: bytes) -> bool:
    """A pid from an earlier launch of the dev server may belong to another process now, so the command is checked."""
    if not process.strip().isdigit():
        return False
    pid = int(process)
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError, OverflowError):
        return False
    try:
        return RUN_FOLDER.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return not Path("/proc/self").exists()  # this system has no /proc
    except OSError:
        return False
