"""ssh through HTTPS, at the server: what becomes of the bytes."""

import asyncio
import hashlib
import os
import socket
import struct
from datetime import timedelta
from pathlib import Path
from typing import cast

import httpx2

from gpudev.api.http.connection_limits import ConnectionLimits
from gpudev.cli import proxy_tunnel
from gpudev.proxy.ssh.tunnel import SessionRegistry, Tunnel
from gpudev.sdk.user_files import KEY_VARIABLE
from gpudev.wire import websocket
from support.api.harness import Api
from support.api.ssh_proxy import PROXY_SETTINGS, Proxy, closed, greeting, proxy_of
from support.polling import eventually_async


async def test_bytes_go_through_unchanged_however_they_are_cut(proxy: Proxy, ada: httpx2.AsyncClient) -> None:
    await proxy.reserve(ada)
    async with proxy.open(await proxy.token(ada)) as session:
        await greeting(session)
        content = bytes(range(256)) * 3000

        async def say() -> None:
            for size in (1, 125, 126, 65_535, 65_536, 400_000, len(content)):
                await session.send(content[:size])
            await session.send([content[:10], b"", content[10:20]])  # one message in fragments

        expected = b"".join(content[:n] for n in (1, 125, 126, 65_535, 65_536, 400_000, len(content))) + content[:20]
        saying = asyncio.create_task(say())
        received = b""
        async with asyncio.timeout(20):
            while len(received) < len(expected):
                part = await session.recv()
                assert isinstance(part, bytes)
                received += part
        await saying
        assert received == expected


async def test_a_dev_server_that_takes_its_time_gets_every_byte_as_it_was(
    proxy: Proxy, ada: httpx2.AsyncClient, tmp_path: Path
) -> None:
    """Bytes that wait for it lie where they were read: nothing else may be read to that place."""
    heard = asyncio.get_running_loop().create_future()

    async def take_its_time(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken = hashlib.sha256()
        while part := await reader.read(100_000):
            taken.update(part)
            await asyncio.sleep(0.001)  # slower than the sender
        heard.set_result(taken.hexdigest())
        writer.write_eof()

    proxy.handler = take_its_time
    await proxy.reserve(ada)
    env = {"HOME": str(tmp_path), KEY_VARIABLE: ada.headers["Authorization"].split()[1]}
    line = await asyncio.to_thread(
        proxy_tunnel.open_fast_connection, proxy.job["job_id"], f"http://{proxy.address}", env
    )
    assert line is not None
    said = hashlib.sha256()

    def say() -> None:
        for size in (1, 9_000, 200_000, 5, 700_000) * 20:
            payload = os.urandom(size)
            said.update(payload)
            line.socket.sendall(websocket.client_data_header(size) + payload)
        line.socket.sendall(websocket.client_data_header(0))

    with line.socket:
        await asyncio.to_thread(say)
        assert await asyncio.wait_for(heard, 30) == said.hexdigest()


def test_nothing_is_read_to_where_bytes_still_wait_for_the_dev_server() -> None:
    """Not every event loop keeps a copy of what it could not send at once."""

    class Slow(asyncio.Transport):
        waiting = 0

        def get_write_buffer_size(self) -> int:
            return self.waiting

    tunnel = Tunnel(cast(SessionRegistry, None))
    tunnel._server = server = Slow()
    first = tunnel.get_buffer(-1)
    assert tunnel.get_buffer(-1) is first
    server.waiting = 1
    second = tunnel.get_buffer(-1)
    assert second.obj is not first.obj
    server.waiting = 0
    assert tunnel.get_buffer(-1) is second


async def test_a_side_that_has_ended_still_hears_the_other(proxy: Proxy, ada: httpx2.AsyncClient) -> None:
    """`ssh host 'cat > file; md5sum file' < big` would lose its answer otherwise."""

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        total = len(await reader.read())  # until the other side has ended
        writer.write(f"{total} bytes".encode())
        writer.write_eof()

    proxy.handler = count
    await proxy.reserve(ada)
    async with proxy.open(await proxy.token(ada)) as session:
        await session.send(b"x" * 100_000)
        await session.send(b"")
        assert await asyncio.wait_for(session.recv(), 10) == b"100000 bytes"
        assert (await closed(session))[0] == 1000


async def test_a_dev_server_that_has_ended_still_hears_the_client(proxy: Proxy, ada: httpx2.AsyncClient) -> None:
    heard = asyncio.get_running_loop().create_future()

    async def end_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write_eof()
        heard.set_result(await reader.read())

    proxy.handler = end_first
    await proxy.reserve(ada)
    async with proxy.open(await proxy.token(ada)) as session:
        assert await asyncio.wait_for(session.recv(), 10) == b"", "the end of that direction"
        await session.send(b"last words")
        await session.send(b"")
        assert await asyncio.wait_for(heard, 10) == b"last words"
        assert (await closed(session))[0] == 1000


async def test_whoever_reads_slowly_is_sent_slowly(proxy: Proxy, ada: httpx2.AsyncClient) -> None:
    """What one end does not take is not taken from the other: nothing piles up in between."""
    pushed = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal pushed
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()
            pushed += 65536

    proxy.handler = flood
    await proxy.reserve(ada)
    async with proxy.open(await proxy.token(ada), max_queue=1) as session:
        await session.recv()
        before = -1

        def moves_no_more() -> bool:
            nonlocal before
            last, before = before, pushed
            return last == pushed

        await eventually_async(moves_no_more, every=0.3)
        assert pushed < 40 * 2**20, "more than the buffers of the system's sockets hold"
        (tunnel,) = proxy.sessions._open
        assert tunnel._client.get_write_buffer_size() < 2**20
        for _ in range(200):
            await session.recv()
        await eventually_async(lambda: pushed > before)
        session.transport.abort()


async def test_a_dev_server_that_cuts_the_connection_is_told_as_that(proxy: Proxy, ada: httpx2.AsyncClient) -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        line: socket.socket = writer.get_extra_info("socket")
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, and no goodbye
        writer.transport.abort()

    proxy.handler = cut
    await proxy.reserve(ada)
    async with proxy.open(await proxy.token(ada)) as session:
        await session.send(b"x")
        assert await closed(session) == (1011, "the dev server closed the connection")


async def test_a_session_outlives_every_patience_with_slow_requests(api: Api, ada: httpx2.AsyncClient) -> None:
    async with proxy_of(api, PROXY_SETTINGS, ConnectionLimits(header_timeout=timedelta(seconds=1))) as proxy:
        await proxy.reserve(ada)
        async with proxy.open(await proxy.token(ada)) as session:
            await greeting(session)
            await asyncio.sleep(1.5)  # longer than headers are waited for
            await session.send(b"still here")
            assert await asyncio.wait_for(session.recv(), 10) == b"still here"


async def test_the_short_way_of_the_client_needs_one_connection_and_no_other_way(
    proxy: Proxy, ada: httpx2.AsyncClient, tmp_path: Path
) -> None:
    await proxy.reserve(ada)
    env = {"HOME": str(tmp_path), KEY_VARIABLE: ada.headers["Authorization"].split()[1]}
    line = await asyncio.to_thread(
        proxy_tunnel.open_fast_connection, proxy.job["job_id"], f"http://{proxy.address}", env
    )
    assert line is not None
    with line.socket:
        await eventually_async(lambda: len(proxy.sessions) == 1)
        line.socket.settimeout(10)
        came = line.received or await asyncio.to_thread(line.socket.recv, 100)
        assert came == b"\x82\x0eSSH-2.0-echo\r\n"


async def test_text_is_not_understood(proxy: Proxy, ada: httpx2.AsyncClient) -> None:
    await proxy.reserve(ada)
    async with proxy.open(await proxy.token(ada)) as session:
        await session.send("hello")
        assert (await closed(session))[0] == 1003


async def test_two_hundred_sessions_at_once(proxy: Proxy, ada: httpx2.AsyncClient) -> None:
    await proxy.reserve(ada)
    token = await proxy.token(ada)

    async def one(number: int) -> None:
        async with proxy.open(token, open_timeout=200) as session:
            await asyncio.wait_for(session.recv(), 200)
            await arrived.wait()
            await session.send(b"%d" % number)
            assert await asyncio.wait_for(session.recv(), 200) == b"%d" % number

    arrived = asyncio.Event()
    working = [asyncio.create_task(one(number)) for number in range(200)]
    async with asyncio.timeout(200):
        await eventually_async(lambda: len(proxy.sessions) == 200 and proxy.came == 200, within=200)
        arrived.set()
        await asyncio.gather(*working)
    await eventually_async(lambda: len(proxy.sessions) == 0)
