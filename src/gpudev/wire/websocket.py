"""WebSocket frames (RFC 6455) for a stream of bytes, both directions, without I/O.

Messages are passed on as they arrive and never reassembled: their boundaries have no meaning. Pings and closes are
returned as whole frames. `gpu-dev proxy-command` loads this for every connection, so it imports little.
"""

import os
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import NamedTuple

_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTINUATION, _BINARY = 0x0, 0x2
CLOSE, PING, PONG = 0x8, 0x9, 0xA
_LAST_FRAGMENT, _RESERVED, _OPCODE = 0x80, 0x70, 0x0F
_MASKED = 0x80
_EXTENDED_LENGTH = {126: 2, 127: 8}
"""Size of the extended length field, by the value of the 7-bit length."""
_LARGEST_CONTROL = 125
_NO_CODE = 1005
# Masks prevent web pages from controlling the bytes that an old cache sees. Here no page controls anything: the payload
# is ssh ciphertext. A mask of zeros is valid and costs nothing, while another would cost as much as the encryption.
_ZERO_MASK = b"\0\0\0\0"
PING_FRAME = bytes((_LAST_FRAGMENT | PING, 0))
"""From a server, without payload."""

Unmask = Callable[[bytes | memoryview, bytes], bytes]


class BrokenProtocol(Exception):
    """The peer violates the protocol."""

    def __init__(self, message: str, rest: bytes) -> None:
        super().__init__(message)
        self.rest = rest
        """The received bytes, from the invalid frame on."""


class DataEvent(NamedTuple):
    payload: bytes | memoryview
    """Empty for an empty frame that ends nothing: every frame is an event, so that readers can bound their work."""


class EndEvent(NamedTuple):
    """An empty message: the peer sends no more bytes, but still accepts ours."""


class ControlEvent(NamedTuple):
    opcode: int
    payload: bytes
    """As received: masked, if from a client."""
    frame: bytes
    """The whole frame."""


FrameEvent = DataEvent | EndEvent | ControlEvent


class ClosePayload(NamedTuple):
    code: int
    reason: str


def new_key() -> str:
    return b64encode(os.urandom(16)).decode()


def accept_value(key: str) -> str:
    try:
        # hashlib initializes all of OpenSSL first, which takes longer than the whole handshake.
        from _sha1 import sha1  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        from hashlib import sha1

    return b64encode(sha1(key.encode() + _MAGIC, usedforsecurity=False).digest()).decode()


def client_data_header(size: int) -> bytes:
    """The header of a frame with this payload size. 0 ends our direction."""
    return _header(_BINARY, size, _ZERO_MASK)


def server_data_header(size: int) -> bytes:
    """The same, from a server."""
    return _header(_BINARY, size, b"")


def client_pong(payload: bytes) -> bytes:
    return _header(PONG, len(payload), _ZERO_MASK) + payload


def client_close(code: int) -> bytes:
    return _header(CLOSE, 2, _ZERO_MASK) + code.to_bytes(2, "big")


def _header(opcode: int, size: int, mask: bytes) -> bytes:
    first, masked = _LAST_FRAGMENT | opcode, _MASKED if mask else 0
    if size < 126:
        return bytes((first, masked | size)) + mask
    if size < 65536:
        return bytes((first, masked | 126)) + size.to_bytes(2, "big") + mask
    return bytes((first, masked | 127)) + size.to_bytes(8, "big") + mask


def parse_close(payload: bytes) -> ClosePayload:
    code = int.from_bytes(payload[:2], "big") if len(payload) >= 2 else _NO_CODE
    return ClosePayload(code, payload[2:].decode("utf-8", "replace"))


class FrameReader:
    """Parses bytes as they arrive into events. Data are views of the input, not copies."""

    def __init__(self, unmask: Unmask | None = None) -> None:
        """`unmask`: for frames from a client, which are always masked. None: from a server, which never are."""
        self._unmask = unmask
        self._partial = b""
        """An incomplete header or control frame."""
        self._left = 0
        self._mask = b""

    def read(self, received: bytes | memoryview) -> Iterator[FrameEvent]:
        """Raises BrokenProtocol; do not read any further after that."""
        if self._partial:
            received, self._partial = self._partial + bytes(received), b""
        view = memoryview(received)
        at, end = 0, len(view)
        while at < end:
            if self._left:
                part = view[at : at + self._left]
                at += len(part)
                self._left -= len(part)
                yield DataEvent(self._plain(part))
                continue
            head = _parse_head(view[at:])
            if head is None:
                self._partial = bytes(view[at:])
                return
            if self._is_broken(head):
                rest = bytes(view[at:])
                raise BrokenProtocol(f"a frame begins with {rest[:2].hex()}", rest)
            begin, at = at, at + head.length
            if head.first & _OPCODE < CLOSE:
                self._left, self._mask = head.size, head.mask
                if not head.size:
                    yield EndEvent() if head.first == _LAST_FRAGMENT | _BINARY else DataEvent(b"")
                continue
            at += head.size
            if at > end:
                self._partial = bytes(view[begin:])
                return
            frame = bytes(view[begin:at])
            yield ControlEvent(head.first & _OPCODE, frame[head.length :], frame)

    def _is_broken(self, head: "_FrameHead") -> bool:
        if head.first & _RESERVED or bool(head.mask) is (self._unmask is None):
            return True
        opcode = head.first & _OPCODE
        if opcode < CLOSE:
            return opcode not in (_CONTINUATION, _BINARY)
        return opcode > PONG or head.size > _LARGEST_CONTROL or not head.first & _LAST_FRAGMENT

    def _plain(self, part: memoryview) -> bytes | memoryview:
        if self._unmask is None or self._mask == _ZERO_MASK:
            return part
        shift = len(part) % 4
        plain = self._unmask(part, self._mask)
        self._mask = self._mask[shift:] + self._mask[:shift]
        return plain


class FrameBoundaryTracker:
    """Tracks frame boundaries in bytes that are passed on unread: a frame of our own can be inserted only there."""

    def __init__(self, tiny_below: int = 0) -> None:
        """`tiny_below`: frames with less payload than this are counted."""
        self._partial = b""
        self._left = 0
        self._is_closed = False
        self._tiny_below = tiny_below
        self.tiny_frames = 0

    @property
    def is_at_boundary(self) -> bool:
        """No frame is incomplete, and none was a close."""
        return not (self._partial or self._left or self._is_closed)

    def advance(self, data: bytes | memoryview, most_frames: int | None = None) -> int:
        """Returns how much of the data was examined: all, unless there are more frames than `most_frames`."""
        before = len(self._partial)
        data, self._partial = self._partial + bytes(data) if before else data, b""
        at, end, frames = 0, len(data), 0
        while at < end and frames != most_frames:
            step = min(self._left, end - at)
            self._left -= step
            at += step
            if at == end:
                break
            head = _parse_head(memoryview(data)[at:])
            if head is None:
                self._partial = bytes(data[at:])
                return end - before
            frames += 1
            self.tiny_frames += head.size < self._tiny_below
            self._is_closed = self._is_closed or head.first & _OPCODE == CLOSE
            at += head.length
            self._left = head.size
        return at - before


class _FrameHead(NamedTuple):
    first: int
    """Opcode and flags."""
    mask: bytes
    """Empty: unmasked."""
    size: int
    """Payload size."""
    length: int
    """Header size."""


def _parse_head(view: memoryview) -> _FrameHead | None:
    """None: incomplete."""
    if len(view) < 2:
        return None
    short = view[1] & 0x7F
    begin = 2 + _EXTENDED_LENGTH.get(short, 0)
    length = begin + 4 if view[1] & _MASKED else begin
    if len(view) < length:
        return None
    size = short if begin == 2 else int.from_bytes(view[2:begin], "big")
    return _FrameHead(view[0], bytes(view[begin:length]), size, length)
