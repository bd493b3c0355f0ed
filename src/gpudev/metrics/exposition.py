"""All of a process's metrics as text, as Prometheus reads it. Who serves it, and to whom, is not known here."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Protocol

import prometheus_client
from prometheus_client import CollectorRegistry, generate_latest

from gpudev.domain.errors import Unavailable
from gpudev.metrics import event_counters, instruments
from gpudev.metrics.event_counters import Happened
from gpudev.metrics.system_state import Picture, PictureCollector
from gpudev.ports.clock import Clock

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST
_ANSWER_WITHIN_SECONDS = 5.0
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


class History(Protocol):
    async def begin(self) -> None: ...

    async def since_last_time(self) -> list[Happened]: ...


class Exposition:
    """Of one process: what it counts by itself. It asks nobody."""

    async def text(self) -> bytes:
        # Beside the loop: it takes milliseconds, and requests should not wait for it.
        return await asyncio.to_thread(generate_latest)


class SystemExposition(Exposition):
    """Of a processor: also what the database shows of the whole system. Every processor tells how things are; what has
    happened is counted by the one that plans, so that nothing counts twice."""

    def __init__(
        self,
        take: Callable[[datetime], Awaitable[Picture]],
        past: History,
        clock: Clock,
        *,
        is_planning: Callable[[], bool],
        staleness: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._take = take
        self._past = past
        self._clock = clock
        self._is_planning = is_planning
        self._staleness = staleness
        self._follows = False
        self._registry = CollectorRegistry()
        self._collector = PictureCollector()
        self._registry.register(self._collector)
        self._asking = asyncio.Lock()

    async def text(self) -> bytes:
        async with self._asking:
            self._collector.picture = await self._ask()
            self._collector.staleness = self._staleness()
            instruments.is_leader.set(self._is_planning())
            return await super().text() + generate_latest(self._registry)

    async def _ask(self) -> Picture | None:
        """None: the database does not answer, which is told instead."""
        try:
            async with asyncio.timeout(_ANSWER_WITHIN_SECONDS):
                await self._follow()
                return await self._take(self._clock.now())
        except (Unavailable, TimeoutError):
            return None

    async def _follow(self) -> None:
        if not self._is_planning():
            self._follows = False
        elif self._follows:
            event_counters.count(await self._past.since_last_time())
        else:
            await self._past.begin()
            self._follows = True
