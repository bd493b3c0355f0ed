"""Log lines of every process: a line that cannot be written is dropped, and is never an error of whoever logs.

A full disk is the usual reason. What was dropped is counted, and the next line that can be written is preceded by one
that says how many are missing. If only a part of a line could be written, the next one starts on a fresh line, so that
a reader loses the cut line and no other.
"""

import contextlib
import io
import json
import os
import stat
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any


def dropped_as_json(count: int) -> str:
    """The line that says how many are missing, among events in JSON."""
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return json.dumps({"count": count, "event": "log.lines_dropped", "level": "warning", "timestamp": now})


def dropped_as_text(count: int) -> str:
    return f"{count} earlier log line{'' if count == 1 else 's'} could not be written"


class LineOutput:
    """Appends whole lines to a descriptor. Never raises OSError."""

    def __init__(self, descriptor: int, describe_dropped: Callable[[int], str]) -> None:
        self._descriptor = descriptor
        self._describe_dropped = describe_dropped
        self._lock = threading.Lock()
        # An earlier process may have left a cut line, on a disk that was still full when this one was started.
        self._is_cut = _is_regular_file(descriptor) and _ends_in_cut_line(Path(f"/dev/fd/{descriptor}"))
        self.dropped = 0
        """Lines that could not be written since the last one that could."""

    def write_line(self, line: bytes) -> None:
        with self._lock:
            notice = self._notice()
            content = notice + line + b"\n"
            written = self._write(content)
            if written:
                self._is_cut = content[written - 1 : written] != b"\n"
            # A line that lacks only its end can be read: the next one begins with it.
            if self.dropped and written >= len(notice) - 1:
                self.dropped = 0
            if written < len(content) - 1:
                self.dropped += 1

    def _notice(self) -> bytes:
        """What goes before the next line."""
        fresh_line = b"\n" if self._is_cut else b""
        return fresh_line + (self._describe_dropped(self.dropped).encode() + b"\n" if self.dropped else b"")

    def _write(self, content: bytes) -> int:
        """How many bytes were written: a disk that becomes full takes the first part of a line."""
        written = 0
        with contextlib.suppress(OSError):
            while written < len(content):
                written += os.write(self._descriptor, content[written:])
        return written


class LineLogger:
    """What structlog writes rendered events to, as text or bytes."""

    def __init__(self, output: LineOutput) -> None:
        self._output = output

    def msg(self, message: str | bytes) -> None:
        self._output.write_line(message.encode("utf-8", "backslashreplace") if isinstance(message, str) else message)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


class LineLoggerFactory:
    """structlog's `logger_factory`: all loggers of a process share one output."""

    def __init__(self, describe_dropped: Callable[[int], str] = dropped_as_json, descriptor: int | None = None) -> None:
        """By default the lines go to standard error."""
        self._logger = LineLogger(LineOutput(_standard_error() if descriptor is None else descriptor, describe_dropped))

    def __call__(self, *_: Any) -> LineLogger:
        return self._logger


class _LossyStream(io.TextIOBase):
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._output = LineOutput(descriptor, dropped_as_text)
        self._rest = ""

    def fileno(self) -> int:
        return self._descriptor

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._output.write_line(line.encode("utf-8", "backslashreplace"))
        return len(text)


def make_standard_error_lossy() -> None:
    """For processes that write lines and tracebacks to `sys.stderr` without a logger."""
    sys.stderr = _LossyStream(_standard_error())


def open_log_file(path: Path) -> IO[bytes]:
    """For a process that is about to start: opened for appending, and on a fresh line if an earlier process left a cut
    one."""
    file = path.open("ab", buffering=0)  # not for reading too: the process may hand it on to users
    if _ends_in_cut_line(path):
        with contextlib.suppress(OSError):
            file.write(b"\n")
    return file


def _is_regular_file(descriptor: int) -> bool:
    try:
        return stat.S_ISREG(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def _ends_in_cut_line(path: Path) -> bool:
    with contextlib.suppress(OSError), path.open("rb") as reader:
        return reader.seek(0, os.SEEK_END) > 0 and os.pread(reader.fileno(), 1, reader.tell() - 1) != b"\n"
    return False


def _standard_error() -> int:
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):  # replaced by something that is not a file
        return 2
