"""The client's half of a WebSocket (RFC 6455), as far as a stream of bytes needs it. It reads and writes no socket.

Messages are passed on as they come in, never put together first: their boundaries mean nothing to us.
"""

import os
from base64 import b64encode
from collections.abc import Iterator
from typing import NamedTuple

_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
_LAST_FRAGMENT, _MASKED = 0x80, 0x80
_LARGEST_CONTROL = 125
# Masks keep web pages from choosing what an old cache on the way sees. Here no page chooses anything: what is sent is
# ssh's ciphertext. A mask of zeros is a mask, and it costs nothing, where another would cost as much as the encryption.
_MASK = b"\0\0\0\0"


class BrokenProtocol(Exception):
    """The other side does not speak as it should."""


class DataEvent(NamedTuple):
    payload: memoryview


class EndEvent(NamedTuple):
    """No more bytes will come; ours are still taken."""


class PingEvent(NamedTuple):
    payload: bytes


class CloseEvent(NamedTuple):
    code: int
    reason: str


FrameEvent = DataEvent | EndEvent | PingEvent | CloseEvent


def new_key() -> str:
    return b64encode(os.urandom(16)).decode()


def accept_value(key: str) -> str:
    try:
        # hashlib would set up all of OpenSSL first, which takes longer than the whole greeting.
        from _sha1 import sha1  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        from hashlib import sha1

    return b64encode(sha1(key.encode() + _MAGIC, usedforsecurity=False).digest()).decode()


def data_header(size: int) -> bytes:
    """What goes before so many bytes. None: our direction has ended."""
    return _header(_BINARY, size)


def pong_frame(payload: bytes) -> bytes:
    return _header(_PONG, len(payload)) + payload


def close_frame(code: int) -> bytes:
    return _header(_CLOSE, 2) + code.to_bytes(2, "big")


def _header(opcode: int, size: int) -> bytes:
    first = _LAST_FRAGMENT | opcode
    if size < 126:
        return bytes((first, _MASKED | size)) + _MASK
    if size < 65536:
        return bytes((first, _MASKED | 126)) + size.to_bytes(2, "big") + _MASK
    return bytes((first, _MASKED | 127)) + size.to_bytes(8, "big") + _MASK


class FrameReader:
    """Takes bytes as they arrive, gives what they say. Payloads are views of what was given, not copies."""

    def __init__(self) -> None:
        self._head = b""
        self._opcode = _BINARY
        self._left = 0
        self._is_last = True
        self._control = b""

    def read(self, received: memoryview) -> Iterator[FrameEvent]:
        at, end = 0, len(received)
        while at < end:
            if not self._left:
                at = self._read_head(received, at)
                if not self._head and not self._left:
                    yield from self._empty_frame()
                continue
            part = received[at : at + self._left]
            at += len(part)
            self._left -= len(part)
            if self._opcode <= _BINARY:
                yield DataEvent(part)
            else:
                self._control += part
                if not self._left:
                    yield from self._complete_control()

    def _read_head(self, received: memoryview, at: int) -> int:
        """Answers where it ends; `_head` holds what there is of one that is not complete."""
        before = len(self._head)
        head = self._head + bytes(received[at : at + 10 - before])
        length = 2 if len(head) < 2 else {126: 4, 127: 10}.get(head[1], 2)
        if len(head) < length:
            self._head = head
            return at + len(head) - before
        self._head = b""
        self._opcode = head[0] & 0x0F
        size = head[1] if length == 2 else int.from_bytes(head[2:length], "big")
        if head[0] & 0x70 or head[1] & _MASKED or self._opcode not in (_CONTINUATION, _BINARY, _CLOSE, _PING, _PONG):
            raise BrokenProtocol(f"a frame begins with {head[:2].hex()}")
        if self._opcode >= _CLOSE and (size > _LARGEST_CONTROL or not head[0] & _LAST_FRAGMENT):
            raise BrokenProtocol("a control frame is too long")
        self._left = size
        self._is_last = bool(head[0] & _LAST_FRAGMENT)
        return at + length - before

    def _empty_frame(self) -> Iterator[FrameEvent]:
        """A frame without payload."""
        if self._opcode == _BINARY and self._is_last:
            yield EndEvent()
        elif self._opcode >= _CLOSE:
            yield from self._complete_control()

    def _complete_control(self) -> Iterator[FrameEvent]:
        payload, self._control = self._control, b""
        if self._opcode == _PING:
            yield PingEvent(payload)
        elif self._opcode == _CLOSE:
            code = int.from_bytes(payload[:2], "big") if len(payload) >= 2 else 1005
            yield CloseEvent(code, payload[2:].decode("utf-8", "replace"))
