"""Trailers: fields behind a chunked body. Proxies look at the ones in front, so those behind must be none."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from gpudev.api.http.connection_limits import ConnectionLimits, limited_http_protocol
from support.api.serving import port_of, serving

CHUNKED = b"POST / HTTP/1.1\r\nHost: api\r\nX-Forwarded-For: 192.0.2.1\r\nTransfer-Encoding: chunked\r\n\r\n"
BODY = b"2\r\n{}\r\n"
CUT = b"HTTP/1.1 431 "


async def tell_headers(scope: Scope, receive: Receive, send: Send) -> None:
    """Late, when whatever could be taken for a header has come."""
    request = Request(scope, receive)
    with contextlib.suppress(ClientDisconnect):
        size = len(await request.body())
        told = f"{size} {request.headers.getlist('x-forwarded-for')} {request.headers.get('authorization')}"
        await PlainTextResponse(told)(scope, receive, send)


@pytest.fixture
async def port() -> AsyncIterator[int]:
    limits = ConnectionLimits(max_header_bytes=8192)
    async with serving(tell_headers, http=limited_http_protocol(limits)) as server:
        yield port_of(server)


async def test_what_comes_behind_a_body_is_no_header(port: int) -> None:
    trailers = b"X-Forwarded-For: 203.0.113.9\r\nAuthorization: Bearer gpudev_of_somebody\r\n"
    answer = await ask(port, CHUNKED + BODY + b"0\r\n" + trailers + b"\r\n")
    assert answer.endswith(b"2 ['192.0.2.1'] None")


@pytest.mark.parametrize("unit", [b"x" * 4096, b"X-A: b\r\n" * 512], ids=["one endless", "endlessly many"])
async def test_nobody_fills_the_memory_behind_a_body(port: int, unit: bytes) -> None:
    """The parser keeps all of it, and nothing makes its sender wait."""
    answer = await ask(port, CHUNKED + BODY + b"0\r\nX-A: b\r\nX-B: ", unit, times=4096)
    assert answer.startswith(CUT)


async def test_nobody_sends_endlessly_between_two_chunks(port: int) -> None:
    answer = await ask(port, CHUNKED + BODY + b"2;", b"x" * 4096, times=4096)
    assert answer.startswith(CUT)


async def test_a_body_in_chunks_of_one_byte_is_a_body(port: int) -> None:
    answer = await ask(port, CHUNKED, b"1\r\nx\r\n", times=30_000, then=b"0\r\n\r\n")
    assert answer.endswith(b"30000 ['192.0.2.1'] None")


async def ask(port: int, first: bytes, unit: bytes = b"", times: int = 0, then: bytes = b"") -> bytes:
    """Sends until it is cut off, at most so often; answers what was answered. Who still sends when the connection is
    closed may lose the answer: then it is CUT."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answered = asyncio.create_task(reader.read(4096))
    try:
        async with asyncio.timeout(60):
            writer.write(first)
            with contextlib.suppress(OSError):
                for _ in range(times):
                    if answered.done():
                        break
                    writer.write(unit)
                    await writer.drain()
                writer.write(then)
            try:
                return await answered
            except OSError:
                return CUT
    finally:
        answered.cancel()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
