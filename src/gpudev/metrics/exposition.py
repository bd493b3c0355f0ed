"""The metrics of one process as Prometheus text. Serving it over HTTP is the caller's concern."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Protocol

import prometheus_client
from prometheus_client import CollectorRegistry, generate_latest

from gpudev.domain.errors import Unavailable
from gpudev.metrics import event_counters, instruments
from gpudev.metrics.event_counters import CountedEvent
from gpudev.metrics.system_state import SystemState, SystemStateCollector
from gpudev.ports.clock import Clock

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST
_DATABASE_TIMEOUT_SECONDS = 5.0
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


class EventHistory(Protocol):
    async def begin(self) -> None: ...

    async def since_last_time(self) -> list[CountedEvent]: ...


class Exposition:
    """What this process counts by itself. It does no I/O."""

    async def text(self) -> bytes:
        # In a thread: it takes milliseconds, and requests should not wait for it.
        return await asyncio.to_thread(generate_latest)


class SystemExposition(Exposition):
    """A processor's metrics, with the state of the whole system from the database.

    Every processor exposes the state. Only the one that plans counts events, so that nothing counts twice.
    """

    def __init__(
        self,
        load_state: Callable[[datetime], Awaitable[SystemState]],
        events: EventHistory,
        clock: Clock,
        *,
        is_planning: Callable[[], bool],
        staleness: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._load_state = load_state
        self._events = events
        self._clock = clock
        self._is_planning = is_planning
        self._staleness = staleness
        self._is_counting = False
        self._registry = CollectorRegistry()
        self._collector = SystemStateCollector()
        self._registry.register(self._collector)
        self._lock = asyncio.Lock()

    async def text(self) -> bytes:
        async with self._lock:
            self._collector.state = await self._load()
            self._collector.staleness = self._staleness()
            instruments.is_leader.set(self._is_planning())
            return await super().text() + generate_latest(self._registry)

    async def _load(self) -> SystemState | None:
        """None: the database does not answer; `gpudev_database_up` says so."""
        try:
            async with asyncio.timeout(_DATABASE_TIMEOUT_SECONDS):
                await self._count_events()
                return await self._load_state(self._clock.now())
        except (Unavailable, TimeoutError):
            return None

    async def _count_events(self) -> None:
        if not self._is_planning():
            self._is_counting = False
        elif self._is_counting:
            event_counters.count_events(await self._events.since_last_time())
        else:
            await self._events.begin()
            self._is_counting = True
