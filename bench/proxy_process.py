"""The real proxy as a process of its own, over tokens on paper: each leads to the echo server at the given port."""

import asyncio
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import uvicorn
import uvloop
from starlette.applications import Starlette

from gpudev.domain.ids import ReservationId, UserId
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Connection
from gpudev.domain.sessions.grants import Grant, Standing
from gpudev.http_edge.audit import AuditTrail
from gpudev.ports.auditing import AuditEntry, AuditQuery
from gpudev.ports.clock import SystemClock
from gpudev.proxy.dev_server_connector import Targets
from gpudev.proxy.ssh.handshake import SessionGuard
from gpudev.proxy.ssh.sessions import Sessions
from gpudev.settings import Guarding, ProxySettings
from gpudev.workflows.sessions.ssh_tokens import Proxying

JOB = "00000000-0000-4000-8000-000000000001"
GRANT = Grant(ReservationId(UUID(JOB)), UserId(1), 1)


class PaperTokens:
    def __init__(self, port: int) -> None:
        self._standing = Standing("bench", True, True, True, Status.ACTIVE, Connection("127.0.0.1", port, "dev", ""))

    async def keep(self, digest: bytes, grant: Grant, *, ends_at: datetime, now: datetime) -> None:
        raise NotImplementedError

    async def find(self, digest: bytes) -> tuple[Grant, datetime]:
        return GRANT, SystemClock().now() + timedelta(hours=1)

    async def standings(self, grants: Sequence[Grant]) -> dict[Grant, Standing]:
        return dict.fromkeys(grants, self._standing)


class PaperLog:
    async def append(self, entries: Sequence[AuditEntry]) -> None:
        """Nobody reads it."""

    async def find(self, query: AuditQuery) -> list[AuditEntry]:
        raise NotImplementedError


async def serve(echo_port: int) -> None:
    settings = ProxySettings(most_per_user=10_000, most=10_000)
    reservations: object = None  # only asked for new tokens
    proxying = Proxying(reservations, PaperTokens(echo_port), SystemClock(), settings.token_ttl)  # type: ignore[arg-type]
    trail = AuditTrail(PaperLog(), SystemClock())
    guard = SessionGuard(proxying, trail, SystemClock(), Guarding())
    sessions = Sessions(proxying, guard, Targets(True, frozenset(), settings.connect_timeout), settings)
    sessions.start()
    config = uvicorn.Config(
        Starlette(),
        port=0,
        http="httptools",
        ws=sessions.tunnel,  # type: ignore[arg-type]
        lifespan="off",
        log_config=None,
        access_log=False,
        backlog=2048,
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    print(server.servers[0].sockets[0].getsockname()[1], flush=True)
    await serving


if __name__ == "__main__":
    import structlog

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    uvloop.run(serve(int(sys.argv[1])))
