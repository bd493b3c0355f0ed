"""LISTEN on one connection with automatic reconnects, and the changes received through it.

After every (re)connect all subscribers are woken, because notifications sent in between are lost.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from uuid import UUID

import asyncpg
import structlog

from gpudev.adapters.postgres.database.pool import UNREACHABLE, Connection, connect
from gpudev.domain.backoff import backoff
from gpudev.domain.errors import Unavailable
from gpudev.ports.access import AccessChange
from gpudev.settings import DatabaseSettings

log = structlog.get_logger(__name__)
OnConnect = Callable[[Connection], Awaitable[None]]
RESERVATION_CHANGES_CHANNEL = "reservation_changes"
ACCESS_CHANGES_CHANNEL = "access_changes"
_FIRST_DELAY_S, _MAX_DELAY_S = 0.05, 2.0
_HEALTHY_AFTER_S = 5.0


class LivenessProbe:
    """How often a listening connection is checked with a query.

    The answer arrives after all earlier notifications. So it also proves that none sent before the query is missing.
    """

    interval_s = 10.0

    def is_due(self) -> bool:
        return True

    def record_answer(self, sent_at: float) -> None:
        return None


class Listener:
    """Calls `on_payload(payload)` for every notification and `on_payload(None)` after every (re)connect."""

    def __init__(
        self,
        database: DatabaseSettings,
        channel: str,
        on_payload: Callable[[str | None], None],
        on_connect: OnConnect | None = None,
        probe: "LivenessProbe | None" = None,
    ) -> None:
        self._probe = probe or LivenessProbe()
        self._database = database
        self._channel = channel
        self._on_payload = on_payload
        self._on_connect = on_connect
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"listen {self._channel}")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        failures = 0
        while True:
            began = time.monotonic()
            try:
                await self._listen()
            except (Unavailable, asyncpg.PostgresError, *UNREACHABLE) as error:
                log.warning("listener.lost", channel=self._channel, error=str(error))
            except Exception:
                log.exception("listener.broken", channel=self._channel)
            failures = 1 if time.monotonic() - began > _HEALTHY_AFTER_S else failures + 1
            await asyncio.sleep(backoff(failures, _FIRST_DELAY_S, _MAX_DELAY_S))

    async def _listen(self) -> None:
        """Listen until the connection ends. A periodic query distinguishes a dead connection from a silent one."""
        connection = await connect(self._database)
        ended = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: ended.set())
            if self._on_connect is not None:
                await self._on_connect(connection)
            await connection.add_listener(self._channel, lambda *args: self._on_payload(str(args[3])))
            self._on_payload(None)
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._probe.interval_s):
                        await ended.wait()
                if not ended.is_set() and self._probe.is_due():
                    sent_at = time.monotonic()
                    await connection.execute("SELECT 1", timeout=5)
                    self._probe.record_answer(sent_at)
        finally:
            connection.terminate()


class PostgresReservationChanges:
    """Wakes the subscribers of a reservation. Implements `ports.reservations.ReservationChanges`."""

    def __init__(self, database: DatabaseSettings) -> None:
        self._listener = Listener(database, RESERVATION_CHANGES_CHANNEL, self._wake_watchers)
        self._watchers: dict[UUID, set[asyncio.Event]] = {}

    def start(self) -> None:
        self._listener.start()

    async def close(self) -> None:
        await self._listener.close()

    @contextlib.asynccontextmanager
    async def subscribe(self, reservation_id: UUID) -> AsyncIterator[AsyncIterator[None]]:
        woken = asyncio.Event()
        self._watchers.setdefault(reservation_id, set()).add(woken)
        try:
            yield self._wait_for_changes(woken)
        finally:
            watchers = self._watchers[reservation_id]
            watchers.discard(woken)
            if not watchers:
                del self._watchers[reservation_id]

    async def _wait_for_changes(self, woken: asyncio.Event) -> AsyncIterator[None]:
        while True:
            await woken.wait()
            woken.clear()
            yield

    def _wake_watchers(self, payload: str | None) -> None:
        if payload is None:
            chosen = [event for watchers in self._watchers.values() for event in watchers]
        else:
            chosen = list(self._watchers.get(UUID(payload), ()))
        for event in chosen:
            event.set()


class AccessLivenessProbe(LivenessProbe):
    """Checks often while callers need fresh state, and rarely otherwise, so that an idle machine stays idle."""

    interval_s = 0.25
    _ANSWER_LIFETIME_S = 0.9
    """How long a connection may be dead after its last answer without being noticed. The promise is one second."""
    _IDLE_INTERVAL_S = 10.0

    def __init__(self) -> None:
        self._is_requested = False
        self._sent_at = float("-inf")

    def is_due(self) -> bool:
        return self._is_requested or time.monotonic() - self._sent_at > self._IDLE_INTERVAL_S

    def record_answer(self, sent_at: float) -> None:
        self._is_requested = False
        self._sent_at = sent_at

    def is_fresh(self) -> bool:
        self._is_requested = True
        return time.monotonic() - self._sent_at < self._ANSWER_LIFETIME_S


class PostgresAccessChanges:
    """Publishes which keys and users changed. Implements `ports.access.AccessChanges`."""

    def __init__(self, database: DatabaseSettings) -> None:
        self._probe = AccessLivenessProbe()
        self._listener = Listener(database, ACCESS_CHANGES_CHANNEL, self._publish_change, probe=self._probe)
        self._callbacks: list[Callable[[AccessChange], None]] = []

    def start(self) -> None:
        self._listener.start()

    async def close(self) -> None:
        await self._listener.close()

    def attach(self, on_change: Callable[[AccessChange], None]) -> None:
        self._callbacks.append(on_change)

    def is_fresh(self) -> bool:
        return self._probe.is_fresh()

    def _publish_change(self, payload: str | None) -> None:
        kind, _, number = (payload or "").partition(":")
        change = AccessChange()  # everything: also for payloads of a later version
        if kind == "key" and number.isdigit():
            change = AccessChange(key_id=int(number))
        elif kind == "user" and number.isdigit():
            change = AccessChange(user_id=int(number))
        for on_change in self._callbacks:
            on_change(change)
