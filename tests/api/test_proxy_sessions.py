"""ssh through HTTPS, at the server: who gets through, to where, for how long, and what becomes of the bytes."""

import asyncio
import contextlib
import json
import re
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gpudev.api.app import create_app
from gpudev.api.connections import guarded_http
from gpudev.bootstrap.proxy import serving_sessions
from gpudev.cli import shortcut
from gpudev.domain.errors import Unavailable
from gpudev.domain.proxy import Grant, Standing
from gpudev.domain.reservation import Connection
from gpudev.ports.auditing import AuditEntry, AuditQuery
from gpudev.proxy.sessions import Sessions
from gpudev.settings import Guarding, ProxySettings, load
from support.api import Api, identifier, refused, submit, until

QUICK = ProxySettings(look_every=timedelta(milliseconds=20), connect_timeout=timedelta(seconds=2))
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Proxy:
    """The API with its proxy on a real port, and a dev server that a test plays."""

    api: Api
    address: str
    sessions: Sessions
    dev_server: asyncio.Server
    handler: Handler
    came: int = 0
    job: dict[str, Any] = field(default_factory=dict)

    @property
    def port(self) -> int:
        return int(self.dev_server.sockets[0].getsockname()[1])

    async def reserve(
        self, client: httpx2.AsyncClient, host: str = "127.0.0.1", port: int | None = None
    ) -> dict[str, Any]:
        """An active reservation, recorded to be where this test's dev server listens, or elsewhere."""
        job = await submit(client, gpu_count=1)
        world, reservation_id = self.api.world, identifier(job)
        await world.turn()
        where = Connection(host, self.port if port is None else port, "dev", "ssh-ed25519 AAAA")
        world.cluster.servers[reservation_id] = replace(world.cluster.servers[reservation_id], connection=where)
        await world.turn()
        assert (await world.get(reservation_id)).connection == where
        self.job = job
        return job

    async def token(self, client: httpx2.AsyncClient) -> str:
        answer = await client.post(f"/v1/jobs/{self.job['job_id']}/proxy-token")
        assert answer.status_code == 200, answer.text
        assert answer.headers["cache-control"] == "no-store"
        assert answer.json()["url"] is None
        return str(answer.json()["token"])

    def open(self, token: str, *, path: str = "", headers: Sequence[tuple[str, str]] = (), **more: Any) -> connect:
        url = f"ws://{self.address}/v1/jobs/{self.job['job_id']}/ssh{path}"
        said = [("Authorization", f"Bearer {token}"), *headers]
        return connect(url, additional_headers=said, compression=None, max_size=None, proxy=None, **more)

    async def is_refused(self, token: str, status: int, **more: Any) -> str:
        with pytest.raises(InvalidStatus) as refusal:
            async with self.open(token, **more):
                pass
        response = refusal.value.response
        assert response.status_code == status
        assert response.headers["Content-Type"] == "application/problem+json"
        assert self.came == 0, "the dev server was connected to"
        return response.body.decode()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.came += 1
        try:
            await self.handler(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Greets at once, as ssh servers do; then says everything back, and ends when the other side has."""
    writer.write(b"SSH-2.0-echo\r\n")
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


@contextlib.asynccontextmanager
async def proxy_of(api: Api, settings: ProxySettings) -> AsyncIterator[Proxy]:
    api.services = replace(api.services, settings=replace(api.services.settings, proxy=settings))
    api.app = create_app(api.services)
    played: list[Proxy] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await played[0].serve(reader, writer)

    dev_server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with serving_sessions(api.services) as sessions:
        config = uvicorn.Config(
            api.app,
            port=0,
            http=guarded_http(Guarding(header_timeout=timedelta(seconds=0.5))),
            ws=sessions.tunnel,  # type: ignore[arg-type]
            lifespan="off",
            log_config=None,
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        await until(lambda: server.started)
        address = f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        played.append(Proxy(api, address, sessions, dev_server, echo))
        yield played[0]
        server.should_exit = True
        await serving
    dev_server.close()


@pytest.fixture
async def proxy(api: Api) -> AsyncIterator[Proxy]:
    async with proxy_of(api, QUICK) as running:
        yield running


async def greeting(session: ClientConnection) -> None:
    assert await asyncio.wait_for(session.recv(), 10) == b"SSH-2.0-echo\r\n"


async def closed(session: ClientConnection) -> tuple[int, str]:
    """How the server ended it."""
    with pytest.raises(ConnectionClosed) as ended:
        async with asyncio.timeout(10):
            while True:
                await session.recv()
    assert ended.value.rcvd is not None
    return ended.value.rcvd.code, ended.value.rcvd.reason


# Bytes


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
        async with asyncio.timeout(20):
            while before != pushed:  # until nothing moves any more
                before = pushed
                await asyncio.sleep(0.3)
        assert pushed < 40 * 2**20, "more than the buffers of the system's sockets hold"
        (tunnel,) = proxy.sessions._open
        assert tunnel._client.get_write_buffer_size() < 2**20
        for _ in range(200):
            await session.recv()
        await until(lambda: pushed > before)
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
        assert await closed(session) == (1011, "the dev server cut the connection")


async def test_a_session_outlives_every_patience_with_slow_requests(proxy: Proxy, ada: httpx2.AsyncClient) -> None:
    await proxy.reserve(ada)
    async with proxy.open(await proxy.token(ada)) as session:
        await greeting(session)
        await asyncio.sleep(1.0)  # twice as long as headers are waited for
        await session.send(b"still here")
        assert await asyncio.wait_for(session.recv(), 10) == b"still here"


async def test_the_short_way_of_the_client_needs_one_connection_and_no_other_way(
    proxy: Proxy, ada: httpx2.AsyncClient, tmp_path: Path
) -> None:
    await proxy.reserve(ada)
    env = {"HOME": str(tmp_path), shortcut.KEY_VARIABLE: ada.headers["Authorization"].split()[1]}
    line = await asyncio.to_thread(shortcut.open_line, proxy.job["job_id"], f"http://{proxy.address}", env)
    assert line is not None
    with line.socket:
        await until(lambda: len(proxy.sessions) == 1)
        line.socket.settimeout(10)
        came = line.first or await asyncio.to_thread(line.socket.recv, 100)
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
        async with proxy.open(token, open_timeout=60) as session:
            await asyncio.wait_for(session.recv(), 60)
            await arrived.wait()
            await session.send(b"%d" % number)
            assert await asyncio.wait_for(session.recv(), 60) == b"%d" % number

    arrived = asyncio.Event()
    working = [asyncio.create_task(one(number)) for number in range(200)]
    async with asyncio.timeout(60):
        await until(lambda: len(proxy.sessions) == 200 and proxy.came == 200)
        arrived.set()
        await asyncio.gather(*working)
    await until(lambda: len(proxy.sessions) == 0)


# Who gets in


async def test_another_users_reservation_does_not_exist(
    proxy: Proxy, ada: httpx2.AsyncClient, bob: httpx2.AsyncClient
) -> None:
    job = await proxy.reserve(ada)
    refused(await bob.post(f"/v1/jobs/{job['job_id']}/proxy-token"), 404, "not_found")
    refused(await bob.get(f"/v1/jobs/{job['job_id']}/ssh"), 404, "not_found")
    theirs = proxy.job
    await proxy.reserve(bob)
    bobs = await proxy.token(bob)
    proxy.job = theirs
    await proxy.is_refused(bobs, 401)


async def test_only_what_is_active_has_a_way(proxy: Proxy, ada: httpx2.AsyncClient) -> None:
    job = await submit(ada, gpu_count=8)
    refused(await ada.post(f"/v1/jobs/{job['job_id']}/proxy-token"), 409, "conflict")
    await proxy.reserve(ada)
    token = await proxy.token(ada)
    await ada.post(f"/v1/jobs/{proxy.job['job_id']}/cancel")
    assert "is cancelled" in await proxy.is_refused(token, 409)


async def test_without_a_websocket_it_says_what_it_is(proxy: Proxy, ada: httpx2.AsyncClient) -> None:
    await proxy.reserve(ada)
    answer = await ada.get(f"/v1/jobs/{proxy.job['job_id']}/ssh")
    refused(answer, 426, "upgrade_required")
    assert answer.headers["upgrade"] == "websocket"


async def test_what_is_no_token_opens_nothing(proxy: Proxy, ada: httpx2.AsyncClient) -> None:
    await proxy.reserve(ada)
    token = await proxy.token(ada)
    forged = token[:-1] + ("A" if token[-1] != "A" else "B")
    key = ada.headers["Authorization"].split()[1]
    for wrong in (forged, key, "gpudevt_" + "A" * 43, "x", "x" * 4000, "gpudevt_' OR 1=1 --"):
        await proxy.is_refused(wrong, 401)


async def test_a_token_opens_sessions_for_a_minute(proxy: Proxy, ada: httpx2.AsyncClient) -> None:
    await proxy.reserve(ada)
    token = await proxy.token(ada)
    proxy.api.world.clock.move(seconds=59)
    async with proxy.open(token) as session:
        await greeting(session)
        proxy.api.world.clock.move(seconds=1)
        await session.send(b"still here")
        assert await asyncio.wait_for(session.recv(), 10) == b"still here"
    proxy.came = 0
    await proxy.is_refused(token, 401)
    # The next one that is made takes the ended one away.
    await proxy.token(ada)
    async with proxy.api.world.stores.pool.acquire() as connection:
        assert await connection.fetchval("SELECT count(*) FROM proxy_tokens") == 1


async def test_no_web_page_gets_in_and_no_token_stands_in_an_address(proxy: Proxy, ada: httpx2.AsyncClient) -> None:
    await proxy.reserve(ada)
    token = await proxy.token(ada)
    await proxy.is_refused(token, 403, origin="https://evil.example")
    await proxy.is_refused(token, 403, origin=f"http://{proxy.address}")
    await proxy.is_refused("x" * 20, 422, path=f"?token={token}")
    await proxy.is_refused(token, 422, path="?host=169.254.169.254&port=80")
    await proxy.is_refused(token, 401, headers=[("Authorization", f"Bearer {token}")])
    await proxy.is_refused(token, 404, path="/../../health")


async def test_no_record_leads_to_the_control_plane(api: Api, ada: httpx2.AsyncClient) -> None:
    """Not to its ports on one machine, and to none of its loopback elsewhere; nor to where clouds tell secrets."""
    async with proxy_of(api, QUICK) as proxy:
        await proxy.reserve(ada, "169.254.169.254", 80)
        assert "recorded address" in await proxy.is_refused(await proxy.token(ada), 502)
        await proxy.reserve(ada, port=api.services.settings.api_port)
        await proxy.is_refused(await proxy.token(ada), 502)
        await proxy.reserve(ada, "localhost", QUICK.port)
        await proxy.is_refused(await proxy.token(ada), 502)
    api.services = replace(api.services, settings=replace(api.services.settings, cluster="kubernetes"))
    async with proxy_of(api, QUICK) as proxy:
        await proxy.reserve(ada)
        await proxy.is_refused(await proxy.token(ada), 502)


def test_the_control_plane_is_wherever_one_of_its_parts_listens() -> None:
    own = load(
        {
            "POSTGRES_HOST": "10.0.0.2", "POSTGRES_PORT": "5433", "GPU_DEV_API_PORT": "8001",
            "GPU_DEV_PROXY_PORT": "8002", "GPU_DEV_LISTEN": "192.0.2.7:8003", "GPU_DEV_METRICS_ADDRESS": "0.0.0.0:8004",
        }
    ).own_addresses  # fmt: skip
    assert own >= {
        ("10.0.0.2", 5433), ("127.0.0.1", 8001), ("127.0.0.1", 8002), ("192.0.2.7", 8003), ("0.0.0.0", 8004),
    }  # fmt: skip
    in_a_folder = load({"POSTGRES_HOST": "/run/postgresql"}).own_addresses
    assert all(port != 5432 for _, port in in_a_folder), "that port is everybody's there"


async def test_a_dev_server_that_does_not_answer_is_told(proxy: Proxy, ada: httpx2.AsyncClient) -> None:
    await proxy.reserve(ada)
    proxy.dev_server.close()
    said = await proxy.is_refused(await proxy.token(ada), 503)
    assert "does not answer" in said
    assert "127.0.0.1" not in said
    await until(lambda: len(proxy.sessions) == 0)


async def test_nobody_takes_all_sessions(api: Api, ada: httpx2.AsyncClient, bob: httpx2.AsyncClient) -> None:
    async with proxy_of(api, replace(QUICK, most_per_user=1)) as proxy:
        await proxy.reserve(ada)
        token = await proxy.token(ada)
        async with proxy.open(token) as session:
            await greeting(session)
            proxy.came = 0
            assert "sessions" in await proxy.is_refused(token, 429)
            adas = proxy.job
            await proxy.reserve(bob)
            async with proxy.open(await proxy.token(bob)) as other:
                await greeting(other)
            proxy.job = adas
        await until(lambda: len(proxy.sessions) == 0)
        async with proxy.open(token) as session:
            await greeting(session)


# How long


async def test_a_session_ends_with_its_reservation(proxy: Proxy, ada: httpx2.AsyncClient) -> None:
    await proxy.reserve(ada)
    async with proxy.open(await proxy.token(ada)) as session:
        await greeting(session)
        assert (await ada.post(f"/v1/jobs/{proxy.job['job_id']}/cancel")).status_code == 200
        code, reason = await closed(session)
        assert code == 4001
        assert reason == f"reservation {proxy.job['job_id'][:8]} is cancelled"
    await until(lambda: len(proxy.sessions) == 0)
    # The decision falls at the first look after it, and the usual look is never further away than this.
    assert ProxySettings().look_every <= timedelta(milliseconds=400)


async def test_a_session_ends_with_the_key_that_opened_it(proxy: Proxy, ada: httpx2.AsyncClient) -> None:
    await proxy.reserve(ada)
    other = await proxy.api.as_user("ada")
    async with proxy.open(await proxy.token(ada)) as session, proxy.open(await proxy.token(other)) as stays:
        await greeting(session)
        await greeting(stays)
        assert (await ada.delete("/v1/keys/current")).status_code == 204
        assert (await closed(session))[0] == 4003
        await stays.send(b"with another key")
        assert await asyncio.wait_for(stays.recv(), 10) == b"with another key"


async def test_a_session_ends_when_its_user_is_disabled(proxy: Proxy, ada: httpx2.AsyncClient) -> None:
    await proxy.reserve(ada)
    async with proxy.open(await proxy.token(ada)) as session:
        await greeting(session)
        async with proxy.api.world.stores.pool.acquire() as connection:
            await connection.execute("UPDATE api_users SET is_active = false WHERE username = 'ada'")
        assert await closed(session) == (4003, "your account was disabled")


async def test_a_key_that_comes_to_its_end_cuts_nobody_off(proxy: Proxy, ada: httpx2.AsyncClient) -> None:
    await proxy.reserve(ada)
    async with proxy.open(await proxy.token(ada)) as session:
        await greeting(session)
        async with proxy.api.world.stores.pool.acquire() as connection:
            await connection.execute("UPDATE api_keys SET expires_at = now() - interval '1 second'")
        await proxy.sessions.look()
        await session.send(b"on")
        assert await asyncio.wait_for(session.recv(), 10) == b"on"


async def test_while_the_database_is_away_nothing_is_known_and_nobody_is_cut_off(
    proxy: Proxy, ada: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await proxy.reserve(ada)
    async with proxy.open(await proxy.token(ada)) as session:
        await greeting(session)

        async def away(_grants: Sequence[Grant]) -> dict[Grant, Standing]:
            raise Unavailable("the database does not answer")

        monkeypatch.setattr(proxy.api.services.proxy_tokens, "standings", away)
        await proxy.sessions.look()
        await session.send(b"on")
        assert await asyncio.wait_for(session.recv(), 10) == b"on"
        monkeypatch.undo()
        await ada.post(f"/v1/jobs/{proxy.job['job_id']}/cancel")
        assert (await closed(session))[0] == 4001


async def test_there_is_a_ping_before_anything_on_the_way_gives_up(api: Api, ada: httpx2.AsyncClient) -> None:
    """And a client that answers none is given up itself."""
    settings = replace(QUICK, ping_every=timedelta(0), silent_for=timedelta(seconds=0.5))
    async with proxy_of(api, settings) as proxy:
        await proxy.reserve(ada)
        token = await proxy.token(ada)
        async with proxy.open(token) as answering:
            await greeting(answering)
            reader, writer = await asyncio.open_connection(*proxy.address.split(":"))
            writer.write(
                f"GET /v1/jobs/{proxy.job['job_id']}/ssh HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
                "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
                f"Authorization: Bearer {token}\r\n\r\n".encode()
            )
            said = await asyncio.wait_for(reader.read(), 20)
            writer.close()
            assert said.startswith(b"HTTP/1.1 101 ")
            assert b"\x89\x00" in said, "pings"
            assert b"nobody answered" in said
            await answering.send(b"here")
            assert await asyncio.wait_for(answering.recv(), 10) == b"here"
    assert ProxySettings().ping_every < timedelta(seconds=30)


async def test_a_server_that_stops_says_so(api: Api, ada: httpx2.AsyncClient) -> None:
    async with proxy_of(api, QUICK) as proxy:
        await proxy.reserve(ada)
        async with proxy.open(await proxy.token(ada)) as session:
            await greeting(session)
            ending = asyncio.create_task(proxy.sessions.close())
            assert (await closed(session))[0] == 1001
            await ending


# What is written down, and how often somebody may try


async def written(proxy: Proxy, action: str = "ssh") -> list[AuditEntry]:
    await proxy.api.services.trail.flush()
    return await proxy.api.services.audit_log.find(AuditQuery(action=action))


async def test_a_session_is_in_the_audit_log_when_it_opens_and_when_it_ends(
    proxy: Proxy, ada: httpx2.AsyncClient
) -> None:
    await proxy.reserve(ada)
    async with proxy.open(await proxy.token(ada)) as session:
        await greeting(session)
        (opened,) = await written(proxy)
        assert (opened.action, opened.username, opened.address) == ("ssh session opened", "ada", "127.0.0.1")
        assert (opened.target, opened.outcome) == (proxy.job["job_id"], "ok")
        await session.send(b"four")
        assert await asyncio.wait_for(session.recv(), 10) == b"four"
        await ada.post(f"/v1/jobs/{proxy.job['job_id']}/cancel")
        await closed(session)
    await until(lambda: len(proxy.sessions) == 0)
    _, ended = await written(proxy)
    assert (ended.action, ended.username, ended.outcome) == ("ssh session ended", "ada", "reservation_ended")
    assert ended.target is not None
    assert re.fullmatch(proxy.job["job_id"] + r" after \d+\.\d s, 4 bytes there, 18 back", ended.target)
    assert ended.request_id == opened.request_id


async def test_whoever_is_turned_away_is_in_the_audit_log(proxy: Proxy, ada: httpx2.AsyncClient) -> None:
    await proxy.reserve(ada)
    token = await proxy.token(ada)
    said = await proxy.is_refused("gpudevt_" + "A" * 43, 401)
    await proxy.is_refused(token, 403, origin="https://evil.example")
    forged, page = await written(proxy)
    assert (forged.action, forged.outcome, forged.status) == ("GET /v1/jobs/{job_id}/ssh", "unauthenticated", 401)
    assert (forged.target, forged.address, forged.username) == (proxy.job["job_id"], "127.0.0.1", None)
    assert forged.request_id == json.loads(said)["request_id"]
    assert (page.outcome, page.status) == ("forbidden", 403)


async def test_an_address_that_tries_many_tokens_has_to_wait(api: Api, ada: httpx2.AsyncClient) -> None:
    """Also with a good one: whoever guesses learns nothing any more. Others go on, and so does what is open."""
    guarding = Guarding(wrong_keys_burst=3, wrong_keys_per_minute=1, trusted_proxies=("127.0.0.1",))
    api.services = replace(api.services, settings=replace(api.services.settings, guarding=guarding))
    async with proxy_of(api, QUICK) as proxy:
        await proxy.reserve(ada)
        token = await proxy.token(ada)
        guesser, other = [("X-Forwarded-For", "203.0.113.9")], [("X-Forwarded-For", "203.0.113.10")]
        async with proxy.open(token, headers=guesser) as session:
            await greeting(session)
            proxy.came = 0
            for number in range(3):
                await proxy.is_refused(f"gpudevt_guess-{number:032}", 401, headers=guesser)
            with pytest.raises(InvalidStatus) as refusal:
                async with proxy.open(token, headers=guesser):
                    pass
            assert refusal.value.response.status_code == 429
            assert int(refusal.value.response.headers["Retry-After"]) > 10
            assert proxy.came == 0
            async with proxy.open(token, headers=other) as elsewhere:
                await greeting(elsewhere)
            await session.send(b"on")
            assert await asyncio.wait_for(session.recv(), 10) == b"on"
        assert {entry.address for entry in await written(proxy) if entry.status == 429} == {"203.0.113.9"}


async def test_all_sessions_together_are_bounded_also_while_they_open(api: Api, ada: httpx2.AsyncClient) -> None:
    async with proxy_of(api, replace(QUICK, most=2)) as proxy:
        await proxy.reserve(ada)
        token = await proxy.token(ada)
        async with proxy.open(token) as first, proxy.open(token) as second:
            await greeting(first)
            await greeting(second)
            proxy.came = 0
            assert "as many sessions" in await proxy.is_refused(token, 503)
