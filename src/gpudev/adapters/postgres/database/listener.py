"""LISTEN, kept alive: one connection that hears, and reconnects when the server was away.

After every (re)connect all listeners are woken, because what was said while nobody listened is lost.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from uuid import UUID

import asyncpg
import structlog

from gpudev.adapters.postgres.database.pool import UNREACHABLE, Connection, connect
from gpudev.domain.errors import Unavailable
from gpudev.ports.changes import AccessChange
from gpudev.settings import Database

log = structlog.get_logger(__name__)
OnConnect = Callable[[Connection], Awaitable[None]]
CHANGES_CHANNEL = "reservation_changes"
ACCESS_CHANNEL = "access_changes"
_FIRST_DELAY_S = 0.05
_HEALTHY_AFTER_S = 5.0


class Pulse:
    """How often a listening connection is asked whether it lives, and who wants to know. The answer comes after all
    that was said before the question, so it also proves that nothing said until then is still on its way."""

    every_s = 10.0

    def is_due(self) -> bool:
        return True

    def answered(self, asked_at: float) -> None:
        return None


class Listener:
    """Calls `heard(payload)` for every notification and `heard(None)` after every (re)connect."""

    def __init__(
        self,
        database: Database,
        channel: str,
        heard: Callable[[str | None], None],
        on_connect: OnConnect | None = None,
        pulse: "Pulse | None" = None,
    ) -> None:
        self._pulse = pulse or Pulse()
        self._database = database
        self._channel = channel
        self._heard = heard
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
        delay = _FIRST_DELAY_S
        while True:
            began = time.monotonic()
            try:
                await self._listen()
            except (Unavailable, asyncpg.PostgresError, *UNREACHABLE) as error:
                log.warning("listener.lost", channel=self._channel, error=str(error))
            except Exception:
                log.exception("listener.broken", channel=self._channel)
            if time.monotonic() - began > _HEALTHY_AFTER_S:
                delay = _FIRST_DELAY_S
            await asyncio.sleep(delay)
            delay = min(delay * 2, 2.0)

    async def _listen(self) -> None:
        """Until the connection ends. A quiet ping tells a dead connection from a silent one."""
        connection = await connect(self._database)
        ended = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: ended.set())
            if self._on_connect is not None:
                await self._on_connect(connection)
            await connection.add_listener(self._channel, lambda *args: self._heard(str(args[3])))
            self._heard(None)
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pulse.every_s):
                        await ended.wait()
                if not ended.is_set() and self._pulse.is_due():
                    asked_at = time.monotonic()
                    await connection.execute("SELECT 1", timeout=5)
                    self._pulse.answered(asked_at)
        finally:
            connection.terminate()


class ReservationChanges:
    """Wakes whoever watches a reservation. Fulfils `ports.changes.ReservationChanges`."""

    def __init__(self, database: Database) -> None:
        self._listener = Listener(database, CHANGES_CHANNEL, self._heard)
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
            yield self._wakes(woken)
        finally:
            watchers = self._watchers[reservation_id]
            watchers.discard(woken)
            if not watchers:
                del self._watchers[reservation_id]

    async def _wakes(self, woken: asyncio.Event) -> AsyncIterator[None]:
        while True:
            await woken.wait()
            woken.clear()
            yield

    def _heard(self, payload: str | None) -> None:
        if payload is None:
            chosen = [event for watchers in self._watchers.values() for event in watchers]
        else:
            chosen = list(self._watchers.get(UUID(payload), ()))
        for event in chosen:
            event.set()


class AccessPulse(Pulse):
    """Quick while somebody asks for it, and slow otherwise: a machine that rests is left alone."""

    every_s = 0.25
    _TRUSTED_S = 0.9
    """How long a connection that died right after an answer is believed to hear; a second is promised."""
    _RESTING_S = 10.0

    def __init__(self) -> None:
        self._wanted = False
        self._asked_at = float("-inf")

    def is_due(self) -> bool:
        return self._wanted or time.monotonic() - self._asked_at > self._RESTING_S

    def answered(self, asked_at: float) -> None:
        self._wanted = False
        self._asked_at = asked_at

    def is_fresh(self) -> bool:
        self._wanted = True
        return time.monotonic() - self._asked_at < self._TRUSTED_S


class AccessChanges:
    """Tells which keys and users changed. Fulfils `ports.changes.AccessChanges`."""

    def __init__(self, database: Database) -> None:
        self._pulse = AccessPulse()
        self._listener = Listener(database, ACCESS_CHANNEL, self._heard, pulse=self._pulse)
        self._attached: list[Callable[[AccessChange], None]] = []

    def start(self) -> None:
        self._listener.start()

    async def close(self) -> None:
        await self._listener.close()

    def attach(self, heard: Callable[[AccessChange], None]) -> None:
        self._attached.append(heard)

    def is_fresh(self) -> bool:
        return self._pulse.is_fresh()

    def _heard(self, payload: str | None) -> None:
        kind, _, number = (payload or "").partition(":")
        change = AccessChange()  # also for what a later version may say
        if kind == "key" and number.isdigit():
            change = AccessChange(key_id=int(number))
        elif kind == "user" and number.isdigit():
            change = AccessChange(user_id=int(number))
        for heard in self._attached:
            heard(change)
