"""Server-sent events: lines in, events out. Pure."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class ServerSentEvent(NamedTuple):
    kind: str
    data: bytes
    last_id: str | None
    """What to name when asking for what comes after; it stays until the server names another."""


class EventParser:
    """One stream's lines, as they come. An event that was not finished by an empty line is none."""

    def __init__(self, last_id: str | None = None) -> None:
        self._last_id = last_id
        self._kind = "message"
        self._data: list[bytes] = []

    def feed(self, line: bytes) -> ServerSentEvent | None:
        """The event that this line finishes."""
        text = line.rstrip(b"\r\n")
        if not text:
            event = ServerSentEvent(self._kind, b"\n".join(self._data), self._last_id) if self._data else None
            self._kind, self._data = "message", []
            return event
        name, _, value = text.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._kind = value.decode("utf-8", "replace")
        elif name == b"id" and b"\0" not in value:
            self._last_id = value.decode("utf-8", "replace")
        return None


def parse_events(lines: Iterable[bytes], last_id: str | None = None) -> Iterator[ServerSentEvent]:
    parser = EventParser(last_id)
    for line in lines:
        event = parser.feed(line)
        if event is not None:
            yield event
