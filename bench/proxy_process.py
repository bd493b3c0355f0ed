"""The real proxy as a separate process with fake tokens: each connects to the echo server at the given port."""

import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import uvicorn
import uvloop
from starlette.applications import Starlette

from gpudev.domain.ids import ReservationId, UserId
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import SshEndpoint
from gpudev.domain.sessions.grants import Grant, GrantState
from gpudev.http_edge.audit import AuditTrail
from gpudev.ports.access import AuditEntry, AuditQuery
from gpudev.ports.clock import SystemClock
from gpudev.proxy.dev_server_connector import DevServerConnector
from gpudev.proxy.ssh.handshake import SessionGuard
from gpudev.proxy.ssh.sessions import SshSessions
from gpudev.settings import ProxySettings
from gpudev.workflows.sessions.ssh_tokens import SshTokens
from support.api.serving import serve_and_print_port

JOB = "00000000-0000-4000-8000-000000000001"
GRANT = Grant(ReservationId(UUID(JOB)), UserId(1), 1)


class PaperTokens:
    def __init__(self, port: int) -> None:
        self._standing = GrantState("bench", True, True, True, Status.ACTIVE, SshEndpoint("127.0.0.1", port, "dev", ""))

    async def save_token(self, digest: bytes, grant: Grant, *, ends_at: datetime, now: datetime) -> None:
        raise NotImplementedError

    async def find_token(self, digest: bytes) -> tuple[Grant, datetime]:
        return GRANT, SystemClock().now() + timedelta(hours=1)

    async def load_grant_states(self, grants: Sequence[Grant]) -> dict[Grant, GrantState]:
        return dict.fromkeys(grants, self._standing)


class PaperLog:
    async def append(self, entries: Sequence[AuditEntry]) -> None:
        """Discards all entries."""

    async def find_entries(self, query: AuditQuery) -> list[AuditEntry]:
        raise NotImplementedError


async def serve(echo_port: int) -> None:
    settings = ProxySettings(most_per_user=10_000, most=10_000)
    reservations: object = None  # used only for new tokens
    proxying = SshTokens(reservations, PaperTokens(echo_port), SystemClock())  # type: ignore[arg-type]
    trail = AuditTrail(PaperLog(), SystemClock())
    guard = SessionGuard(proxying, trail, SystemClock())
    sessions = SshSessions(proxying, guard, DevServerConnector(True, frozenset()), settings)
    sessions.start()
    config = uvicorn.Config(
        Starlette(),
        port=0,
        http="httptools",
        ws=sessions.make_tunnel,  # type: ignore[arg-type]
        lifespan="off",
        log_config=None,
        access_log=False,
        backlog=2048,
    )
    server = uvicorn.Server(config)
    await serve_and_print_port(server)


if __name__ == "__main__":
    import structlog

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    uvloop.run(serve(int(sys.argv[1])))
