"""The API with its proxy on a real port, and a dev server that a test plays."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gpudev.api.app import create_app
from gpudev.api.http.connection_limits import CONNECTION_LIMITS, ConnectionLimits, limited_http_protocol
from gpudev.bootstrap.proxy import open_ssh_sessions
from gpudev.domain.reservations.reservation import SshEndpoint
from gpudev.proxy.ssh.sessions import SILENT_FOR, SshSessions
from gpudev.settings import ProxySettings
from support.api.harness import Api, identifier, submit
from support.api.serving import port_of, serving

CHECK_EVERY = timedelta(milliseconds=20)
"""Much more often than in real life, so that no test waits for it."""
PROXY_SETTINGS = ProxySettings()
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Proxy:
    """The API with its proxy on a real port, and a dev server that a test plays."""

    api: Api
    address: str
    sessions: SshSessions
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
        where = SshEndpoint(host, self.port if port is None else port, "dev", "ssh-ed25519 AAAA")
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
async def proxy_of(
    api: Api,
    settings: ProxySettings,
    limits: ConnectionLimits = CONNECTION_LIMITS,
    silent_for: timedelta = SILENT_FOR,
) -> AsyncIterator[Proxy]:
    api.services = replace(api.services, settings=replace(api.services.settings, proxy=settings))
    api.app = create_app(api.services)
    played: list[Proxy] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await played[0].serve(reader, writer)

    dev_server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with (
        open_ssh_sessions(api.services, check_every=CHECK_EVERY, silent_for=silent_for) as sessions,
        serving(api.app, http=limited_http_protocol(limits), ws=sessions.make_tunnel) as server,
    ):
        played.append(Proxy(api, f"127.0.0.1:{port_of(server)}", sessions, dev_server, echo))
        yield played[0]
    dev_server.close()


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
