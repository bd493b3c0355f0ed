"""ssh through HTTPS, at the server: clients that take everything and give nothing, and such as speak nonsense."""

import asyncio
import os
import socket
from base64 import b64encode

import httpx2
import pytest

from gpudev.http_edge.rate_limits import TokenBuckets
from gpudev.ports.access import AuditQuery
from gpudev.proxy.ssh import tunnel
from support.api.ssh_proxy import Proxy, greeting
from support.polling import eventually_async

_BINARY, _CLOSE, _PING = 0x2, 0x8, 0x9
_RESERVED = 0x70


def _frame(opcode: int, payload: bytes = b"", more: int = 0) -> bytes:
    assert len(payload) < 126
    return bytes((0x80 | opcode | more, 0x80 | len(payload))) + bytes(4) + payload


async def _open_deaf(proxy: Proxy, token: str) -> asyncio.StreamWriter:
    """A session of a client that does not read what it is told."""
    host, _, port = proxy.address.partition(":")
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    line.setblocking(False)
    await asyncio.get_running_loop().sock_connect(line, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=line, limit=4096)
    head = (
        f"GET /v1/jobs/{proxy.job['job_id']}/ssh HTTP/1.1",
        f"Host: {proxy.address}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {b64encode(os.urandom(16)).decode()}",
        f"Authorization: Bearer {token}",
    )
    writer.write("\r\n".join((*head, "", "")).encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    return writer


async def _flood(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


@pytest.mark.parametrize(
    "farewell",
    [_frame(_CLOSE, b"\x03\xe8"), _frame(_BINARY, b"abc", _RESERVED), None],
    ids=["goodbye", "nonsense", "end"],
)
async def test_whoever_leaves_without_taking_what_was_said_keeps_no_session_by_it(
    proxy: Proxy, ada: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch, farewell: bytes | None
) -> None:
    monkeypatch.setattr(tunnel, "_DRAIN_SECONDS", 0.2)
    proxy.handler = _flood
    await proxy.reserve(ada)
    writer = await _open_deaf(proxy, await proxy.token(ada))
    (session,) = proxy.sessions._open
    await eventually_async(lambda: session._client.get_write_buffer_size() > 100_000)
    if farewell is None:
        writer.write_eof()
    else:
        writer.write(farewell)
    await eventually_async(lambda: len(proxy.sessions) == 0)
    writer.close()


async def test_tiny_frames_arrive_whole_while_the_session_works_in_slices(
    proxy: Proxy, ada: httpx2.AsyncClient
) -> None:
    await proxy.reserve(ada)
    sent = os.urandom(40_000)
    async with proxy.open(await proxy.token(ada)) as session:
        await greeting(session)
        frames = b"".join(_frame(_BINARY, sent[at : at + 1]) + _frame(_PING) for at in range(len(sent)))
        session.transport.write(frames)
        received = b""
        async with asyncio.timeout(60):
            while len(received) < len(sent):
                part = await session.recv()
                assert isinstance(part, bytes)
                received += part
    assert received == sent


@pytest.mark.parametrize(
    "piece", [_frame(_BINARY, b"x"), _frame(_PING), b"\x00\x80\0\0\0\0"], ids=["x", "ping", "empty"]
)
async def test_a_session_of_nothing_but_tiny_frames_is_ended_and_audited(
    proxy: Proxy, ada: httpx2.AsyncClient, piece: bytes
) -> None:
    proxy.sessions._tiny_frames = TokenBuckets(1000, 60)
    await proxy.reserve(ada)
    writer = await _open_deaf(proxy, await proxy.token(ada))
    writer.write(piece * 5000)
    await eventually_async(lambda: len(proxy.sessions) == 0)
    writer.close()
    trail = proxy.api.services.trail
    await trail.flush()
    (ended,) = await proxy.api.services.audit_log.find_entries(AuditQuery(action="ssh session ended"))
    assert (ended.outcome, ended.username) == ("tiny_frames", "ada")


async def test_pings_of_a_client_that_hears_no_answer_pile_nothing_up(proxy: Proxy, ada: httpx2.AsyncClient) -> None:
    await proxy.reserve(ada)
    writer = await _open_deaf(proxy, await proxy.token(ada))
    (session,) = proxy.sessions._open
    for _ in range(100):
        writer.write(_frame(_PING, b"p" * 125) * 1000)
        await asyncio.wait_for(writer.drain(), 10)
    writer.write(_frame(_PING, b"the last one"))
    await eventually_async(lambda: session._pending_pong.endswith(b"the last one"))
    assert session._client.get_write_buffer_size() < 2**20

    told = b""
    line = writer.get_extra_info("socket").dup()
    line.setblocking(False)
    async with asyncio.timeout(20):
        while not told.endswith(b"the last one"):
            told = told[-20:] + await asyncio.get_running_loop().sock_recv(line, 65536)
    line.close()
    writer.close()
