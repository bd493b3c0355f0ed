"""Server-sent events: lines in, events out. Pure."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Event(NamedTuple):
    kind: str
    data: bytes
    last_id: str | None
    """What to name when asking for what comes after; it stays until the server names another."""


def parse(lines: Iterable[bytes], last_id: str | None = None) -> Iterator[Event]:
    """An event that was not finished by an empty line is none."""
    kind = "message"
    data: list[bytes] = []
    for line in lines:
        text = line.rstrip(b"\r\n")
        if not text:
            if data:
                yield Event(kind, b"\n".join(data), last_id)
            kind, data = "message", []
            continue
        name, _, value = text.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data.append(value)
        elif name == b"event":
            kind = value.decode("utf-8", "replace")
        elif name == b"id" and b"\0" not in value:
            last_id = value.decode("utf-8", "replace")
