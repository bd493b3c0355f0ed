"""Messages from the control plane to people's terminals, in a file with one JSON object per line.

Open terminals show a new message immediately. A new shell shows the last message that is still valid. The texts and
times of messages are decided elsewhere.
"""

import asyncio
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gpudev.ports.clock import Clock, SystemClock

_POLL_S = 0.5
_MAX_READ_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class TerminalMessage:
    text: str
    valid_until: datetime | None = None
    """Until then new shells show it too. None: always."""

    def is_valid_at(self, now: datetime) -> bool:
        return self.valid_until is None or now < self.valid_until


def append_message(path: str, message: TerminalMessage) -> None:
    """Add a message for all open terminals. One write, so that the lines of two writers are never mixed."""
    valid_until = message.valid_until.isoformat() if message.valid_until else None
    line = json.dumps({"text": message.text, "valid_until": valid_until}) + "\n"
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)


def parse_messages(lines: Iterable[bytes]) -> tuple[TerminalMessage, ...]:
    """Invalid lines are skipped: a damaged line must not hide those after it."""
    return tuple(message for line in lines if (message := _parse(line)) is not None)


def _parse(line: bytes) -> TerminalMessage | None:
    try:
        fields = json.loads(line)
        text, valid_until = fields["text"], fields.get("valid_until")
        if not isinstance(text, str):
            return None
        return TerminalMessage(text, _ensure_aware(datetime.fromisoformat(valid_until)) if valid_until else None)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _ensure_aware(time: datetime) -> datetime:
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def format_for_terminal(message: TerminalMessage) -> bytes:
    """On lines of its own, without control characters."""
    lines = ["".join(c if c.isprintable() else " " for c in line) for line in message.text.splitlines()]
    return "".join(f"\r\n*** {line} ***" for line in lines if line.strip()).encode() + b"\r\n"


class TerminalMessages:
    """Shows new messages in open terminals. It polls the file only while there are any."""

    def __init__(self, path: str, clock: Clock | None = None) -> None:
        self._path = path
        self._clock = clock or SystemClock()
        self._terminals: list[Callable[[bytes], None]] = []
        self._position = 0
        self._timer: asyncio.TimerHandle | None = None

    def banner(self) -> bytes:
        """The last message that is still valid, formatted for a terminal. Empty: there is none."""
        now = self._clock.now()
        for message in reversed(parse_messages(self._read(max(0, self._size() - _MAX_READ_BYTES))[0])):
            if message.is_valid_at(now):
                return format_for_terminal(message)
        return b""

    def attach(self, show: Callable[[bytes], None]) -> None:
        if self._timer is None:
            self._position = self._size()
            self._schedule_poll()
        self._terminals.append(show)

    def detach(self, show: Callable[[bytes], None]) -> None:
        self._terminals.remove(show)
        if not self._terminals and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule_poll(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_POLL_S, self._poll)

    def _poll(self) -> None:
        self._schedule_poll()
        size = self._size()
        if size == self._position:
            return
        if size < self._position:  # the file was replaced or truncated
            self._position = 0
        lines, self._position = self._read(self._position)
        now = self._clock.now()
        for message in parse_messages(lines):
            if message.is_valid_at(now):
                formatted = format_for_terminal(message)
                for show in list(self._terminals):
                    show(formatted)

    def _size(self) -> int:
        try:
            return Path(self._path).stat().st_size
        except OSError:
            return 0

    def _read(self, start: int) -> tuple[list[bytes], int]:
        """The complete lines from `start` on, and where the next line begins."""
        try:
            with open(self._path, "rb") as file:
                file.seek(start)
                data = file.read(_MAX_READ_BYTES)
        except OSError:
            return [], start
        complete = data[: data.rfind(b"\n") + 1]
        if not complete and len(data) == _MAX_READ_BYTES:  # no message of ours is that long: skip it
            return [], start + len(data)
        return complete.splitlines(), start + len(complete)
