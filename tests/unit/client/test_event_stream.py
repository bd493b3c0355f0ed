"""Server-sent events, line by line."""

from collections.abc import Iterable

import pytest

from gpudev.sdk.http.event_stream import EventParser, ServerSentEvent


def parse_events(lines: Iterable[bytes], last_id: str | None = None) -> list[ServerSentEvent]:
    parser = EventParser(last_id)
    return [event for line in lines if (event := parser.feed(line)) is not None]


@pytest.mark.parametrize(
    ("text", "events"),
    [
        (b"event: job\ndata: {}\n\n", [ServerSentEvent("job", b"{}", None)]),
        (b"data: x\n\n", [ServerSentEvent("message", b"x", None)]),
        (b"data:x\n\n", [ServerSentEvent("message", b"x", None)]),
        (b"data:  x\n\n", [ServerSentEvent("message", b" x", None)]),
        (b"data: a\ndata: b\n\n", [ServerSentEvent("message", b"a\nb", None)]),
        (b"event: job\r\ndata: {}\r\n\r\n", [ServerSentEvent("job", b"{}", None)]),
        (b": still here\n\ndata: x\n\n", [ServerSentEvent("message", b"x", None)]),
        (
            b"id: 7\nevent: event\ndata: x\n\ndata: y\n\n",
            [ServerSentEvent("event", b"x", "7"), ServerSentEvent("message", b"y", "7")],
        ),
        (b"event: job\n\ndata: x\n\n", [ServerSentEvent("message", b"x", None)]),
        (b"retry: 100\nunknown\ndata: x\n\n", [ServerSentEvent("message", b"x", None)]),
        (b"data: x\n", []),
        (b"data: x\n\ndata: cut o", [ServerSentEvent("message", b"x", None)]),
        (b"", []),
    ],
)
def test_events_are_read_as_the_standard_has_them(text: bytes, events: list[ServerSentEvent]) -> None:
    assert parse_events(text.splitlines(keepends=True)) == events


def test_the_last_id_of_an_earlier_stream_is_kept_until_another_is_named() -> None:
    lines = b"data: x\n\nid: 9\ndata: y\n\n".splitlines(keepends=True)
    assert [event.last_id for event in parse_events(lines, "8")] == ["8", "9"]
