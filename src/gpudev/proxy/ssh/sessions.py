"""All ssh sessions of this process: limits, authorization checks, and pings.

One query checks all sessions. It is repeated rather than triggered by notifications, which can be lost: a session must
end within a second of the revocation.
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
from gpudev.http_edge.rate_limits import TokenBuckets
from gpudev.metrics import instruments
from gpudev.metrics.loop_watchdog import LoopWatchdog
from gpudev.proxy.dev_server_connector import DevServerConnector
from gpudev.proxy.loop_share import TINY_PIECES, LoopShare
from gpudev.proxy.ssh import handshake
from gpudev.proxy.ssh.handshake import SessionGuard, SessionTraffic
from gpudev.proxy.ssh.tunnel import Tunnel
from gpudev.settings import ProxySettings
from gpudev.workflows.sessions.ssh_tokens import GRANT_CHECK_EVERY, AdmittedSession, SshTokens

log = structlog.get_logger(__name__)
_CLOSE_SECONDS = 1.0
_CHECK_SECONDS = 1.0
SILENT_FOR = timedelta(minutes=5)
"""When a client that does not answer pings is disconnected. Long, because a laptop may sleep for a moment."""


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
        self._tiny_frames = TokenBuckets(*TINY_PIECES)
        self.share = LoopShare()
        self.watchdog = LoopWatchdog()

    def __len__(self) -> int:
        return len(self._open)

    def start(self) -> None:
        self._check_task = asyncio.create_task(self._check_loop(), name="proxy sessions")

    async def close(self) -> None:
        """Ends all sessions, each with a close reason."""
        if self._check_task is not None:
            self._check_task.cancel()
            with suppress(asyncio.CancelledError):
                await self._check_task
        for check in list(self._checks):
            check.cancel()
        for tunnel in list(self._open):
            tunnel.end(SessionEnd(CloseCode.GOING_AWAY, "the server is restarting; connect again"))
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                while self._open:  # noqa: ASYNC110 - sessions remove themselves
                    await asyncio.sleep(0.01)

    def make_tunnel(self, peer: str | None = None, **_: object) -> Tunnel:
        """The protocol of one client's connection. The web server calls this for a WebSocket upgrade. `peer`: the
        client's address, if the connection does not show it."""
        return Tunnel(self, peer)

    def identify_client(self, peer: str | None, request: Request) -> ProxyClient:
        return self._guard.identify_client(peer, request.headers.get_all("X-Forwarded-For"))

    async def open_session(
        self, tunnel: Tunnel, request: Request, client: ProxyClient
    ) -> tuple[AdmittedSession, asyncio.Transport]:
        """Admits the client and connects to the dev server. Raises GpuDevError with the reason."""
        self._opening += 1
        try:
            job_id, secret = handshake.parse_request(request)
            if len(self._open) + self._opening > self._settings.most:
                raise Unavailable("the proxy has reached its maximum number of sessions; try again later")
            admitted = await self._guard.admit(client, secret, job_id)
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

    def has_too_many_tiny_frames(self, tunnel: Tunnel, count: int) -> bool:
        """Per user, because a user may open another session for more of them."""
        admitted = self._open.get(tunnel)
        if admitted is None:
            return False
        user = str(admitted.grant.user_id)
        self._tiny_frames.spend(user, count)
        return self._tiny_frames.wait_seconds(user) > 0

    def remove(self, tunnel: Tunnel) -> None:
        admitted = self._open.pop(tunnel, None)
        if admitted is not None:
            self._by_user[admitted.grant.user_id] -= 1
            if not self._by_user[admitted.grant.user_id]:
                del self._by_user[admitted.grant.user_id]
            instruments.proxy_sessions.set(len(self._open))

    def _add(self, tunnel: Tunnel, admitted: AdmittedSession) -> None:
        limit = self._settings.most_per_user
        if self._by_user[admitted.grant.user_id] >= limit:
            raise LimitReached(f"you have {limit} sessions open through the proxy, the maximum; close some")
        self._open[tunnel] = admitted
        self._by_user[admitted.grant.user_id] += 1
        instruments.proxy_sessions.set(len(self._open))

    async def _check_loop(self) -> None:
        """Never ends: any error is logged and the loop continues."""
        while True:
            self.watchdog.beat("sessions")
            await asyncio.sleep(self._check_every)
            try:
                await self.end_expired()
                self.ping_all()
            except Exception:
                log.exception("proxy.check_failed")

    async def end_expired(self) -> None:
        """Ends the sessions that are no longer permitted. While the database is down, no session is ended."""
        grants = list({admitted.grant for admitted in self._open.values()})
        if not grants:
            return
        try:
            endings = await self._ssh_tokens.find_ended(grants)
        except Unavailable as error:
            if not self._is_database_away:
                log.warning("proxy.cannot_check", error=error.message)
            self._is_database_away = True
            return
        self._is_database_away = False
        for tunnel, admitted in list(self._open.items()):
            ending = endings.get(admitted.grant)
            if ending is not None:
                tunnel.end(ending)

    def end_expired_first(self, then: Callable[[], None]) -> None:
        """A dev server removed at the end of its reservation looks like a broken connection. Checks the sessions first,
        so that the client gets the actual reason."""
        check = asyncio.get_running_loop().create_task(self._end_expired_briefly())
        self._checks.add(check)

        def on_done(done: asyncio.Task[None]) -> None:
            self._checks.discard(done)
            then()

        check.add_done_callback(on_done)

    async def _end_expired_briefly(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_CHECK_SECONDS):
                await self.end_expired()

    def ping_all(self) -> None:
        """Keeps idle connections open through proxies, and ends sessions whose client no longer answers."""
        now = asyncio.get_running_loop().time()
        if now - self._pinged_at < self._settings.ping_every.total_seconds():
            return
        self._pinged_at = now
        for tunnel in list(self._open):
            if tunnel.silent_for(now) > self._silent_for:
                tunnel.end(SessionEnd(CloseCode.SILENT, "the client did not answer"))
            else:
                tunnel.ping()
