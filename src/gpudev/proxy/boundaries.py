"""Where frames end in a WebSocket's bytes that are passed on unread: only there is room for a frame of one's own."""

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
