"""Clients that send slowly, endlessly or nothing: they are told so and shut out, and nobody else waits for them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from gpudev.api.http.connection_limits import CONNECTION_LIMITS, ConnectionLimits, limited_http_protocol
from support.api.serving import port_of, serving
from support.polling import eventually_async

LIMITS = ConnectionLimits(
    header_timeout=timedelta(seconds=0.3), body_timeout=timedelta(seconds=0.3), max_header_bytes=4096
)
UNHURRIED = replace(LIMITS, header_timeout=timedelta(seconds=1.5))
"""For clients that are not to be shut out: client and server share one process here, which may be held up for a while
between a connection and its first byte."""
ORDINARY = b"GET / HTTP/1.1\r\nHost: api\r\n\r\n"


class App:
    """Reads what comes; /unread does not, /slow answers after longer than any client may take."""

    def __init__(self) -> None:
        self.gone = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if scope["path"] == "/slow":
            await asyncio.sleep(0.8)  # the server's time-outs are real time
        try:
            size = len(await request.body()) if scope["path"] != "/unread" else 0
        except ClientDisconnect:
            self.gone += 1
            return
        await PlainTextResponse(f"read {size}")(scope, receive, send)


@pytest.fixture
def app() -> App:
    return App()


@contextlib.asynccontextmanager
async def serving_limited(app: App, limits: ConnectionLimits, max_connections: int = 300) -> AsyncIterator[int]:
    http = limited_http_protocol(limits)
    async with serving(app, http=http, timeout_keep_alive=60, limit_concurrency=max_connections) as server:
        yield port_of(server)


@pytest.fixture
async def port(app: App) -> AsyncIterator[int]:
    async with serving_limited(app, LIMITS) as port:
        yield port


@pytest.fixture
async def patient_port(app: App) -> AsyncIterator[int]:
    async with serving_limited(app, UNHURRIED) as port:
        yield port


async def talk(port: int, first: bytes, drip: bytes = b"", every: float = 0.05) -> bytes:
    """Say this, then that again and again; answers what is heard until the server closes, or resets the connection
    since something was on its way to it."""
    heard = b""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def keep_dripping() -> None:
        while drip:
            await asyncio.sleep(every)
            writer.write(drip)
            await writer.drain()

    dripping = asyncio.create_task(keep_dripping())
    try:
        writer.write(first)
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionError):
                while chunk := await reader.read(65536):
                    heard += chunk
        return heard
    finally:
        dripping.cancel()
        await asyncio.gather(dripping, return_exceptions=True)
        writer.close()


@pytest.mark.parametrize(
    ("first", "drip"),
    [
        (b"", b""),
        (b"GET / HTT", b""),
        (b"GET / HTTP/1.1\r\nHost: api\r\n", b"X-Slow: 1\r\n"),
        (b"GET / HTTP/1.1\r\nHost: api\r\nX-Slow: ", b"a"),
        (b"", b"\r\n"),
        (b"POST / HTTP/1.1\r\nHost: api\r\nContent-Length: 1000\r\n\r\n", b""),
        (b"POST / HTTP/1.1\r\nHost: api\r\nContent-Length: 1000\r\n\r\n", b"a"),
        (b"POST / HTTP/1.1\r\nHost: api\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
    ],
)
async def test_whoever_takes_too_long_is_told_and_shut_out(port: int, first: bytes, drip: bytes) -> None:
    assert (await talk(port, first, drip)).startswith(b"HTTP/1.1 408 ")


async def test_a_large_body_has_the_time_that_a_slow_line_needs(patient_port: int) -> None:
    """A notebook that is saved from a train: it takes longer than a small request may, and comes on all the time."""
    first = b"POST / HTTP/1.1\r\nHost: api\r\nConnection: close\r\nContent-Length: 96000\r\n\r\n"
    assert (await talk(patient_port, first + b"a" * 30_000, b"a" * 6000)).endswith(b"read 96000")


async def test_a_large_body_that_stops_coming_is_not_waited_for(patient_port: int) -> None:
    heard = await talk(patient_port, b"POST / HTTP/1.1\r\nHost: api\r\nContent-Length: 96000\r\n\r\n" + b"a" * 6000)
    assert heard.startswith(b"HTTP/1.1 408 ")


async def test_a_slow_body_that_nobody_reads_keeps_no_connection_open(patient_port: int) -> None:
    heard = await talk(patient_port, b"POST /unread HTTP/1.1\r\nHost: api\r\nContent-Length: 1000\r\n\r\n", b"a")
    assert heard.startswith(b"HTTP/1.1 200 ")


async def test_the_second_request_of_a_connection_has_no_more_time_than_the_first(patient_port: int) -> None:
    heard = await talk(patient_port, ORDINARY + b"GET / HTTP/1.1\r\nHost: api\r\n", b"X-Slow: 1\r\n")
    assert heard.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 408 " in heard
    heard = await talk(patient_port, ORDINARY, b"\r\n")
    assert heard.count(b"HTTP/1.1") == 2, "empty lines are no sign of life"


async def test_whoever_reads_a_body_learns_that_its_client_was_shut_out(patient_port: int, app: App) -> None:
    await talk(patient_port, b"POST / HTTP/1.1\r\nHost: api\r\nContent-Length: 10\r\n\r\nabc")
    await eventually_async(lambda: app.gone == 1)


@pytest.mark.parametrize("whole", [True, False])
async def test_endless_headers_are_refused(patient_port: int, whole: bool) -> None:
    huge = b"GET / HTTP/1.1\r\nHost: api\r\nX-Huge: " + b"a" * 8000
    heard = await talk(patient_port, huge + b"\r\n\r\n" if whole else huge)
    assert heard.startswith(b"HTTP/1.1 431 ")
    assert heard.count(b"HTTP/1.1") == 1
    heard = await talk(patient_port, b"GET /" + b"a" * 8000 + b" HTTP/1.1\r\nHost: api\r\n\r\n")
    assert heard.startswith(b"HTTP/1.1 431 ")


async def test_an_answer_may_take_longer_than_a_question(patient_port: int) -> None:
    heard = await talk(patient_port, b"GET /slow HTTP/1.1\r\nHost: api\r\nConnection: close\r\n\r\n")
    assert heard.startswith(b"HTTP/1.1 200 ")


async def test_two_hundred_slow_clients_keep_nobody_waiting(app: App) -> None:
    async with serving_limited(app, replace(LIMITS, header_timeout=timedelta(seconds=20))) as port:
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(200)]
        for byte in (b"GET / HTTP/1.1\r\nX: ", b"a"):
            for _, writer in slow:
                writer.write(byte)
                await writer.drain()
        heard = await talk(port, b"GET / HTTP/1.1\r\nHost: api\r\nConnection: close\r\n\r\n")
        assert heard.startswith(b"HTTP/1.1 200 ")
        assert not any(reader.at_eof() for reader, _ in slow), "the slow ones are still at it"
        for _, writer in slow:
            writer.close()


async def test_beyond_the_most_connections_there_is_a_503(app: App) -> None:
    async with serving_limited(app, CONNECTION_LIMITS, max_connections=5) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        heard = await talk(port, b"GET / HTTP/1.1\r\nHost: api\r\nConnection: close\r\n\r\n")
        assert heard.startswith(b"HTTP/1.1 503 ")
        for _, writer in held:
            writer.close()
