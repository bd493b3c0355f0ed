"""The real proxy as a process of its own, with a dev server and a Jupyter on one given port and fake tokens: for
measuring what its event loop does to others. Tiny pieces are never too many here: the bounded work alone is measured.

Prints its port. Arguments: the port of the dev server and Jupyter; and a folder, if another process has the port
(`lone_api`)."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import structlog
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from gpudev.api.http.connection_limits import limited_http_protocol
from gpudev.bootstrap.handover import open_proxy_beside_api
from gpudev.bootstrap.proxy import JupyterProxy
from gpudev.domain.ids import ReservationId, UserId
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import SshEndpoint
from gpudev.domain.sessions.grants import Grant, GrantState
from gpudev.http_edge.audit import AuditTrail
from gpudev.http_edge.rate_limits import TokenBuckets
from gpudev.ports.access import AuditEntry, AuditQuery
from gpudev.ports.clock import SystemClock
from gpudev.ports.sessions import JupyterSecrets
from gpudev.proxy.dev_server_connector import DevServerConnector
from gpudev.proxy.jupyter.guard import JupyterGuard
from gpudev.proxy.jupyter.http_proxy import JupyterAccess
from gpudev.proxy.jupyter.websocket_proxy import JupyterWebSockets
from gpudev.proxy.ssh.handshake import SessionGuard
from gpudev.proxy.ssh.sessions import SshSessions
from gpudev.settings import ProxySettings, RequestGuardSettings
from gpudev.workflows.sessions.jupyter_access import AdmittedBrowser
from gpudev.workflows.sessions.ssh_tokens import SshTokens
from support.api.serving import serve_and_print_port
from support.sessions.tiny_pieces import JOB

_GRANT = Grant(ReservationId(UUID(JOB)), UserId(1), 1)
_ENDLESS = 1e15


class PaperTokens:
    def __init__(self, endpoint: SshEndpoint) -> None:
        self._state = GrantState("mallory", True, True, True, Status.ACTIVE, endpoint)

    async def find_token(self, digest: bytes) -> tuple[Grant, datetime]:
        return _GRANT, SystemClock().now() + timedelta(hours=1)

    async def load_grant_states(self, grants: Sequence[Grant]) -> dict[Grant, GrantState]:
        return dict.fromkeys(grants, self._state)


class PaperBrowsers:
    def __init__(self, endpoint: SshEndpoint) -> None:
        self._admitted = AdmittedBrowser(_GRANT, "mallory", endpoint, JupyterSecrets("token", "", "key"))

    async def admit_browser(self, secret: str | None, reservation_id: str) -> AdmittedBrowser:
        return self._admitted


class PlainTunnels:
    """Without ssh: what it costs is not what is measured."""

    @contextlib.asynccontextmanager
    async def open_tunnel(
        self, endpoint: SshEndpoint, private_key: str
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, limit=2**20)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


class PaperLog:
    async def append(self, entries: Sequence[AuditEntry]) -> None:
        """Discards all entries."""

    async def find_entries(self, query: AuditQuery) -> list[AuditEntry]:
        raise NotImplementedError


def make_proxy(port: int) -> tuple[JupyterProxy, SshSessions, AuditTrail]:
    """Everything admits everybody, and leads to this port."""
    clock, settings = SystemClock(), ProxySettings()
    endpoint = SshEndpoint("127.0.0.1", port, "dev", "")
    papers: Any = PaperTokens(endpoint)
    tokens = SshTokens(None, papers, clock)  # type: ignore[arg-type]
    trail = AuditTrail(PaperLog(), clock)
    sessions = SshSessions(tokens, SessionGuard(tokens, trail, clock), DevServerConnector(True, frozenset()), settings)
    guard = JupyterGuard(trail, clock, (), settings.most_per_user)
    sessions._tiny_frames = guard._tiny_pieces = TokenBuckets(_ENDLESS, 60)
    browsers: Any = PaperBrowsers(endpoint)
    access = JupyterAccess(browsers, PlainTunnels(), guard, ())  # type: ignore[arg-type]
    return JupyterProxy(access, JupyterWebSockets(access, tokens, settings)), sessions, trail


async def serve_beside_api(port: int, folder: Path) -> None:
    jupyter, sessions, _ = make_proxy(port)
    sessions.start()
    jupyter.sockets.start()
    async with open_proxy_beside_api(jupyter, sessions, folder, RequestGuardSettings()) as server:
        print(0, flush=True)
        await server.serve(sockets=[])


async def serve(port: int) -> None:
    jupyter, sessions, _ = make_proxy(port)
    sessions.start()
    jupyter.sockets.start()
    app = Starlette(routes=[Route("/health", lambda _request: PlainTextResponse("ok"))])
    config = uvicorn.Config(
        jupyter.wrap_app(app),
        port=0,
        http=limited_http_protocol(),
        ws=partial(jupyter.make_protocol, sessions),  # type: ignore[arg-type]
        lifespan="off",
        log_config=None,
        access_log=False,
    )
    server = uvicorn.Server(config)
    await serve_and_print_port(server)


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    dev_server = int(sys.argv[1])
    uvloop.run(serve_beside_api(dev_server, Path(sys.argv[2])) if sys.argv[2:] else serve(dev_server))
