"""All sessions of this process: how many there may be, whether each may go on, and whether anybody is still there.

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
from gpudev.domain.sessions.grants import Close, Ending
from gpudev.metrics import instruments
from gpudev.metrics.loop_watchdog import Pulse
from gpudev.proxy import door
from gpudev.proxy.dev_server_connector import Targets
from gpudev.proxy.ssh.handshake import SessionGuard, Traffic, Visitor
from gpudev.proxy.ssh.tunnel import Tunnel
from gpudev.settings import ProxySettings
from gpudev.workflows.sessions.ssh_tokens import Admitted, Proxying

log = structlog.get_logger(__name__)
_WIND_UP_SECONDS = 1.0
_LOOK_SECONDS = 1.0
_STUCK_AFTER = timedelta(minutes=2)


class Sessions:
    def __init__(self, proxying: Proxying, guard: SessionGuard, targets: Targets, settings: ProxySettings) -> None:
        self._proxying = proxying
        self._guard = guard
        self._targets = targets
        self._settings = settings
        self._open: dict[Tunnel, Admitted] = {}
        self._opening = 0
        self._by_user: Counter[int] = Counter()
        self._keeper: asyncio.Task[None] | None = None
        self._looking: set[asyncio.Task[None]] = set()
        self._pinged_at = float("-inf")
        self._is_blind = False
        self.pulse = Pulse(_STUCK_AFTER)

    def __len__(self) -> int:
        return len(self._open)

    def start(self) -> None:
        self._keeper = asyncio.create_task(self._keep(), name="proxy sessions")

    async def close(self) -> None:
        """Ends all of them, each with a word."""
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        for looking in list(self._looking):
            looking.cancel()
        for tunnel in list(self._open):
            tunnel.end(Ending(Close.GOING_AWAY, "this server is restarting: connect again"))
        with suppress(TimeoutError):
            async with asyncio.timeout(_WIND_UP_SECONDS):
                while self._open:  # noqa: ASYNC110 - each leaves by itself
                    await asyncio.sleep(0.01)

    def tunnel(self, **_: object) -> Tunnel:
        """The protocol of one client's connection; a web server calls this when one asks for a WebSocket."""
        return Tunnel(self)

    def greet(self, peer: str | None, request: Request) -> Visitor:
        return self._guard.greet(peer, request.headers.get_all("X-Forwarded-For"))

    async def open(self, tunnel: Tunnel, request: Request, visitor: Visitor) -> tuple[Admitted, asyncio.Transport]:
        """Let in and connected, or an error that says why not."""
        self._opening += 1
        try:
            asked, secret = door.read(request)
            if len(self._open) + self._opening > self._settings.most:
                raise Unavailable("the proxy has as many sessions as it can take; try again later")
            admitted = await self._guard.admit(visitor, secret, asked)
            self._enter(tunnel, admitted)
        except GpuDevError as error:
            instruments.proxy_opened.labels("refused").inc()
            self._guard.refused(visitor, error, door.asked_for(request))
            raise
        finally:
            self._opening -= 1
        connected = await self._targets.connect(admitted.connection, tunnel.far_side)
        instruments.proxy_opened.labels("opened").inc()
        self._guard.opened(visitor, admitted)
        return admitted, connected

    def ended(self, visitor: Visitor, admitted: Admitted, ending: Ending, traffic: Traffic) -> None:
        instruments.proxy_bytes.labels("received").inc(traffic.received)
        instruments.proxy_bytes.labels("sent").inc(traffic.sent)
        self._guard.ended(visitor, admitted, ending, traffic)

    def left(self, tunnel: Tunnel) -> None:
        admitted = self._open.pop(tunnel, None)
        if admitted is not None:
            self._by_user[admitted.grant.user_id] -= 1
            if not self._by_user[admitted.grant.user_id]:
                del self._by_user[admitted.grant.user_id]
            instruments.proxy_sessions.set(len(self._open))

    def _enter(self, tunnel: Tunnel, admitted: Admitted) -> None:
        most = self._settings.most_per_user
        if self._by_user[admitted.grant.user_id] >= most:
            raise LimitReached(f"you have {most} sessions open through the proxy, and more are not allowed")
        self._open[tunnel] = admitted
        self._by_user[admitted.grant.user_id] += 1
        instruments.proxy_sessions.set(len(self._open))

    async def _keep(self) -> None:
        """The one loop that goes on whatever happens."""
        while True:
            self.pulse.beat("sessions")
            await asyncio.sleep(self._settings.look_every.total_seconds())
            try:
                await self.look()
                self.ping()
            except Exception:
                log.exception("proxy.keeper_failed")

    async def look(self) -> None:
        """End those that must end now. While the database is away nothing is known, and nothing ends."""
        grants = list({admitted.grant for admitted in self._open.values()})
        if not grants:
            return
        try:
            endings = await self._proxying.endings(grants)
        except Unavailable as error:
            if not self._is_blind:
                log.warning("proxy.blind", error=error.message)
            self._is_blind = True
            return
        self._is_blind = False
        for tunnel, admitted in list(self._open.items()):
            ending = endings.get(admitted.grant)
            if ending is not None:
                tunnel.end(ending)

    def look_first(self, then: Callable[[], None]) -> None:
        """A dev server that goes because its reservation has ended looks like one that hangs up: who is connected
        would rather know which it was."""
        looking = asyncio.get_running_loop().create_task(self._look_briefly())
        self._looking.add(looking)

        def looked(done: asyncio.Task[None]) -> None:
            self._looking.discard(done)
            then()

        looking.add_done_callback(looked)

    async def _look_briefly(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS):
                await self.look()

    def ping(self) -> None:
        """Keeps every connection busy enough for what is on its way, and ends those where nobody answers."""
        now = asyncio.get_running_loop().time()
        if now - self._pinged_at < self._settings.ping_every.total_seconds():
            return
        self._pinged_at = now
        for tunnel in list(self._open):
            if tunnel.silent_for(now) > self._settings.silent_for.total_seconds():
                tunnel.end(Ending(Close.SILENT, "nobody answered"))
            else:
                tunnel.ping()
