"""Data frames in the quick: told apart from the rest of a WebSocket's traffic, and passed on as they come in.

What carries bytes is handled here, because all bytes go this way, and nothing is gained by collecting a whole message
first. Everything else (pings, goodbyes, whatever breaks the rules) is handed, frame by frame, to the library that knows
the protocol.
"""

from collections.abc import Iterator
from typing import NamedTuple

try:
    from websockets.speedups import apply_mask
except ImportError:  # no such thing was built for this platform
    from websockets.utils import apply_mask

_LAST, _MASKED = 0x80, 0x80
_CONTINUATION, _BINARY, _CLOSE = 0x0, 0x2, 0x8
_NO_MASK = b"\0\0\0\0"


class DataPart(NamedTuple):
    payload: bytes | memoryview


class EndOfData(NamedTuple):
    """An empty message: no more bytes come from there."""


class OtherFrame(NamedTuple):
    """A whole frame of another kind, or what cannot be understood, as it came."""

    raw: bytes


FramePart = DataPart | EndOfData | OtherFrame


class FrameSplitter:
    """For frames from a client, which are always masked."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0
        self._mask = _NO_MASK
        self._is_invalid = False
        """Something broke the rules: from there on everything is the library's."""

    def split(self, received: bytes | memoryview) -> Iterator[FramePart]:
        """What carries bytes is a part of what was received, not a copy."""
        if self._head:
            received, self._head = self._head + bytes(received), b""
        view = memoryview(received)
        at, end = 0, len(view)
        while at < end:
            if self._is_invalid:
                yield OtherFrame(bytes(view[at:]))
                return
            if self._left:
                part = view[at : at + self._left]
                at += len(part)
                self._left -= len(part)
                yield DataPart(self._unmask(part))
                continue
            size, length = _measure_frame(view[at:])
            if size is None:
                self._head = bytes(view[at:])
                return
            yield from self._begin_frame(view[at : at + length], size)
            at += length

    def _begin_frame(self, head: memoryview, size: int) -> Iterator[FramePart]:
        """`head`: of a data frame its header, of others all of it."""
        first = head[0]
        if first & 0x70 or not head[1] & _MASKED or first & 0x0F not in (_CONTINUATION, _BINARY):
            self._is_invalid = first & 0x0F < _CLOSE or first & 0x70 != 0 or not head[1] & _MASKED
            yield OtherFrame(bytes(head))
            return
        self._left = size
        self._mask = bytes(head[-4:])
        if not size and first == _LAST | _BINARY:
            yield EndOfData()

    def _unmask(self, part: memoryview) -> bytes | memoryview:
        if self._mask == _NO_MASK:
            return part
        turn = len(part) % 4
        plain = apply_mask(part, self._mask)
        self._mask = self._mask[turn:] + self._mask[:turn]
        return plain


def data_frame_header(size: int) -> bytes:
    """Of an unfragmented binary message from a server."""
    if size < 126:
        return bytes((_LAST | _BINARY, size))
    if size < 65536:
        return bytes((_LAST | _BINARY, 126)) + size.to_bytes(2, "big")
    return bytes((_LAST | _BINARY, 127)) + size.to_bytes(8, "big")


def _measure_frame(view: memoryview) -> tuple[int | None, int]:
    """How many bytes of payload a frame has, and how long what must be there at once is: the header, and for frames
    other than data the whole of it. None: that is not there yet."""
    there = len(view)
    if there < 2:
        return None, 0
    short = view[1] & 0x7F
    length = 2 + {126: 2, 127: 8}.get(short, 0)
    mask = 4 if view[1] & _MASKED else 0
    if there < length + mask:
        return None, 0
    size = short if length == 2 else int.from_bytes(view[2:length], "big")
    length += mask
    # A frame that breaks the rules is recognised by its header; it is not waited for.
    if view[0] & 0x0F >= _CLOSE and short <= 125:
        length += size
    return (size, length) if there >= length else (None, 0)


# Where frames end in a WebSocket's bytes that are passed on unread: only there is room for a frame of one's own.


_MASK_BIT, _CLOSE_OPCODE = 0x80, 0x8
_EXTENDED_LENGTH = {126: 2, 127: 8}
"""Bytes of the length that follow, by what stands where a short length would."""
PING_FRAME = bytes((0x89, 0))
"""From a server, with nothing in it."""


class FrameBoundaryTracker:
    """Of one direction, from its first byte on."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0
        self._is_closed = False

    @property
    def is_at_boundary(self) -> bool:
        """Nothing is half said, and no goodbye was."""
        return not (self._head or self._left or self._is_closed)

    def advance(self, data: bytes) -> None:
        at, end = 0, len(data)
        while at < end:
            if self._left:
                step = min(self._left, end - at)
                self._left -= step
                at += step
                continue
            self._head += data[at : at + 1]
            at += 1
            size = _payload_length(self._head)
            if size is not None:
                self._is_closed = self._is_closed or self._head[0] & 0x0F == _CLOSE_OPCODE
                self._head, self._left = b"", size


def _payload_length(head: bytes) -> int | None:
    """How many bytes follow it; None: it is not complete."""
    if len(head) < 2:
        return None
    short = head[1] & 0x7F
    length = 2 + _EXTENDED_LENGTH.get(short, 0)
    if len(head) < length + (4 if head[1] & _MASK_BIT else 0):
        return None
    return short if length == 2 else int.from_bytes(head[2:length], "big")
