"""All ssh sessions of this process: limits, continued permission, and liveness.

One question to the database covers all of them. It is asked again and again rather than once somebody says that
something changed: a notification can be lost, and what was revoked has to end within a second.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import structlog
from websockets.http11 import Request

from gpudev.domain.errors import GpuDevError, LimitReached, Unavailable
from gpudev.domain.sessions.grants import CloseCode, SessionEnd
from gpudev.http_edge.audit import ProxyClient
from gpudev.metrics import instruments
from gpudev.metrics.loop_watchdog import LoopWatchdog
from gpudev.proxy.dev_server_connector import DevServerConnector
from gpudev.proxy.ssh import handshake
from gpudev.proxy.ssh.handshake import SessionGuard, SessionTraffic
from gpudev.proxy.ssh.tunnel import Tunnel
from gpudev.settings import ProxySettings
from gpudev.workflows.sessions.ssh_tokens import GRANT_CHECK_EVERY, AdmittedSession, SshTokens

log = structlog.get_logger(__name__)
_CLOSE_SECONDS = 1.0
_CHECK_SECONDS = 1.0
SILENT_FOR = timedelta(minutes=5)
"""When a client that answers no ping is given up: many pings later, since a laptop may sleep for a moment."""


class SshSessions:
    def __init__(
        self,
        ssh_tokens: SshTokens,
        guard: SessionGuard,
        targets: DevServerConnector,
        settings: ProxySettings,
        *,
        check_every: timedelta = GRANT_CHECK_EVERY,
        silent_for: timedelta = SILENT_FOR,
    ) -> None:
        self._ssh_tokens = ssh_tokens
        self._guard = guard
        self._targets = targets
        self._settings = settings
        self._check_every = check_every.total_seconds()
        self._silent_for = silent_for.total_seconds()
        self._open: dict[Tunnel, AdmittedSession] = {}
        self._opening = 0
        self._by_user: Counter[int] = Counter()
        self._check_task: asyncio.Task[None] | None = None
        self._checks: set[asyncio.Task[None]] = set()
        self._pinged_at = float("-inf")
        self._is_database_away = False
        self.watchdog = LoopWatchdog()

    def __len__(self) -> int:
        return len(self._open)

    def start(self) -> None:
        self._check_task = asyncio.create_task(self._check_loop(), name="proxy sessions")

    async def close(self) -> None:
        """Ends all of them, each with a word."""
        if self._check_task is not None:
            self._check_task.cancel()
            with suppress(asyncio.CancelledError):
                await self._check_task
        for looking in list(self._checks):
            looking.cancel()
        for tunnel in list(self._open):
            tunnel.end(SessionEnd(CloseCode.GOING_AWAY, "this server is restarting: connect again"))
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                while self._open:  # noqa: ASYNC110 - each leaves by itself
                    await asyncio.sleep(0.01)

    def make_tunnel(self, **_: object) -> Tunnel:
        """The protocol of one client's connection; a web server calls this when one asks for a WebSocket."""
        return Tunnel(self)

    def identify_client(self, peer: str | None, request: Request) -> ProxyClient:
        return self._guard.identify_client(peer, request.headers.get_all("X-Forwarded-For"))

    async def open_session(
        self, tunnel: Tunnel, request: Request, client: ProxyClient
    ) -> tuple[AdmittedSession, asyncio.Transport]:
        """Let in and connected, or an error that says why not."""
        self._opening += 1
        try:
            asked, secret = handshake.parse_request(request)
            if len(self._open) + self._opening > self._settings.most:
                raise Unavailable("the proxy has as many sessions as it can take; try again later")
            admitted = await self._guard.admit(client, secret, asked)
            self._add(tunnel, admitted)
        except GpuDevError as error:
            instruments.proxy_opened.labels("refused").inc()
            self._guard.record_denied(client, error, handshake.requested_reservation(request))
            raise
        finally:
            self._opening -= 1
        connected = await self._targets.connect(admitted.connection, tunnel.make_server_side)
        instruments.proxy_opened.labels("opened").inc()
        self._guard.record_opened(client, admitted)
        return admitted, connected

    def record_ended(
        self, client: ProxyClient, admitted: AdmittedSession, ending: SessionEnd, traffic: SessionTraffic
    ) -> None:
        instruments.proxy_bytes.labels("received").inc(traffic.received)
        instruments.proxy_bytes.labels("sent").inc(traffic.sent)
        self._guard.record_ended(client, admitted, ending, traffic)

    def remove(self, tunnel: Tunnel) -> None:
        admitted = self._open.pop(tunnel, None)
        if admitted is not None:
            self._by_user[admitted.grant.user_id] -= 1
            if not self._by_user[admitted.grant.user_id]:
                del self._by_user[admitted.grant.user_id]
            instruments.proxy_sessions.set(len(self._open))

    def _add(self, tunnel: Tunnel, admitted: AdmittedSession) -> None:
        most = self._settings.most_per_user
        if self._by_user[admitted.grant.user_id] >= most:
            raise LimitReached(f"you have {most} sessions open through the proxy, and more are not allowed")
        self._open[tunnel] = admitted
        self._by_user[admitted.grant.user_id] += 1
        instruments.proxy_sessions.set(len(self._open))

    async def _check_loop(self) -> None:
        """The one loop that goes on whatever happens."""
        while True:
            self.watchdog.beat("sessions")
            await asyncio.sleep(self._check_every)
            try:
                await self.end_expired()
                self.ping_all()
            except Exception:
                log.exception("proxy.keeper_failed")

    async def end_expired(self) -> None:
        """End those that must end now. While the database is away nothing is known, and nothing ends."""
        grants = list({admitted.grant for admitted in self._open.values()})
        if not grants:
            return
        try:
            endings = await self._ssh_tokens.find_ended(grants)
        except Unavailable as error:
            if not self._is_database_away:
                log.warning("proxy.blind", error=error.message)
            self._is_database_away = True
            return
        self._is_database_away = False
        for tunnel, admitted in list(self._open.items()):
            ending = endings.get(admitted.grant)
            if ending is not None:
                tunnel.end(ending)

    def end_expired_first(self, then: Callable[[], None]) -> None:
        """A dev server that goes because its reservation has ended looks like one that hangs up: who is connected
        would rather know which it was."""
        looking = asyncio.get_running_loop().create_task(self._end_expired_briefly())
        self._checks.add(looking)

        def looked(done: asyncio.Task[None]) -> None:
            self._checks.discard(done)
            then()

        looking.add_done_callback(looked)

    async def _end_expired_briefly(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_CHECK_SECONDS):
                await self.end_expired()

    def ping_all(self) -> None:
        """Keeps every connection busy enough for what is on its way, and ends those where nobody answers."""
        now = asyncio.get_running_loop().time()
        if now - self._pinged_at < self._settings.ping_every.total_seconds():
            return
        self._pinged_at = now
        for tunnel in list(self._open):
            if tunnel.silent_for(now) > self._silent_for:
                tunnel.end(SessionEnd(CloseCode.SILENT, "nobody answered"))
            else:
                tunnel.ping()
