"""Where a frame of our own may stand among those of others: held against a WebSocket library's own writing."""

from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from gpudev.wire.websocket import PING_FRAME, FrameBoundaryTracker

SIZES = st.sampled_from([0, 1, 125, 126, 127, 300, 65535, 65536, 70_000])
KINDS = st.sampled_from([Opcode.TEXT, Opcode.BINARY, Opcode.CONT])


def written(kind: Opcode, size: int, *, mask: bool = False) -> bytes:
    return Frame(kind, b"x" * size).serialize(mask=mask)


@given(st.lists(st.tuples(KINDS, SIZES, st.booleans()), max_size=4), st.lists(st.integers(0, 150_000), max_size=6))
def test_there_is_room_exactly_between_frames(frames: list[tuple[Opcode, int, bool]], cuts: list[int]) -> None:
    raw = [written(kind, size, mask=mask) for kind, size, mask in frames]
    everything = b"".join(raw)
    ends = {sum(map(len, raw[:count])) for count in range(len(raw) + 1)}
    places = sorted({cut for cut in cuts if cut < len(everything)} | {len(everything)} | ends - {0})
    told, at = FrameBoundaryTracker(), 0
    assert told.is_at_boundary
    for place in places:
        told.advance(everything[at:place])
        at = place
        assert told.is_at_boundary == (place in ends)


def test_every_byte_of_a_header_may_come_by_itself() -> None:
    told = FrameBoundaryTracker()
    for byte in written(Opcode.TEXT, 70_000)[:-1]:
        told.advance(bytes((byte,)))
        assert not told.is_at_boundary
    told.advance(b"x")
    assert told.is_at_boundary


def test_after_a_goodbye_nothing_more_is_said() -> None:
    told = FrameBoundaryTracker()
    told.advance(Frame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=False))
    assert not told.is_at_boundary


def test_a_ping_is_a_ping() -> None:
    assert Frame(Opcode.PING, b"").serialize(mask=False) == PING_FRAME
