"""Work that peers cause is done in slices, and what they cut into tiny pieces is put together."""

import asyncio
from collections.abc import Callable

import h11
import pytest

from gpudev.domain.errors import Unavailable
from gpudev.proxy.jupyter.guard import TooManyTinyPieces
from gpudev.proxy.jupyter.headers import JupyterPath
from gpudev.proxy.jupyter.http_proxy import JupyterConnection, _ResponseForwarder
from gpudev.proxy.loop_share import LoopShare, WorkSlice

PATH = JupyterPath("3f2a9c1e-0000-4000-8000-000000000000", "lab")
OK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Reader:
    """Has everything at once, as a peer that never pauses."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def read(self, size: int) -> bytes:
        part, self._data = self._data[:size], self._data[size:]
        return part


async def forwarded(response: bytes, check: Callable[[int], None] = lambda count: None) -> list[bytes]:
    """The bodies that the browser gets."""
    http = h11.Connection(h11.CLIENT)
    http.send(h11.Request(method="GET", target="/", headers=[(b"host", b"jupyter")]))
    http.send(h11.EndOfMessage())
    bodies: list[bytes] = []

    async def send(message: object) -> None:
        assert isinstance(message, dict)
        if message["type"] == "http.response.body":
            bodies.append(message["body"])

    connection = JupyterConnection(Reader(response), None, check, LoopShare())  # type: ignore[arg-type]
    await _ResponseForwarder(http, connection, PATH, send).run()
    return bodies


async def count_iterations(task: "asyncio.Task[object]") -> int:
    count = 0
    while not task.done():
        await asyncio.sleep(0)
        count += 1
    return count


async def test_one_byte_chunks_are_sent_on_together_and_others_are_served_meanwhile() -> None:
    task = asyncio.create_task(forwarded(OK + b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n"))
    iterations = await count_iterations(task)
    bodies = task.result()
    assert b"".join(bodies) == b"x" * 20_000
    assert len(bodies) < 10
    assert iterations > 20


async def test_a_few_interim_responses_are_skipped_and_endless_ones_are_an_error() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    assert b"".join(await forwarded(interim * 3 + OK + b"2\r\nok\r\n0\r\n\r\n")) == b"ok"
    with pytest.raises(Unavailable, match="interim"):
        await forwarded(interim * 100)


async def test_tiny_chunks_are_counted() -> None:
    def cut(count: int) -> None:
        assert count > 100
        raise TooManyTinyPieces("too many")

    with pytest.raises(TooManyTinyPieces):
        await forwarded(OK + b"1\r\nx\r\n" * 20_000, cut)


async def test_sessions_with_more_work_continue_one_per_iteration_in_order() -> None:
    share, served, done = LoopShare(), [], asyncio.Event()

    def work(name: str, left: int) -> None:
        served.append(name)
        if left:
            share.call_next(lambda: work(name, left - 1))
        elif len(served) == 6:
            done.set()

    for name in "ab":
        share.call_next(lambda name=name: work(name, 2))  # type: ignore[misc]
    assert served == []
    task = asyncio.create_task(done.wait())
    assert await count_iterations(task) >= 6
    assert served == ["a", "b"] * 3


async def test_time_spent_waiting_is_not_work() -> None:
    now = 0.0
    work = WorkSlice(lambda: now)

    async def read() -> str:
        nonlocal now
        now += 10
        return "data"

    assert await work.exclude(read()) == "data"
    assert not work.is_over()
    now += 1
    assert work.is_over()
