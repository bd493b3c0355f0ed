"""Short-lived caches shared by concurrent requests."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, TypeVar

from gpudev.domain.queue import QueuePlan
from gpudev.domain.reservations.reservation import Reservation
from gpudev.ports.queue import PlanStore
from gpudev.ports.reservations import UnreleasedView

T = TypeVar("T")
_MAX_SECONDS = 2.0


class CachedValue(Generic[T]):
    """Caches the result of `load` for `seconds`, or for `cost_factor` times as long as loading took (at most two
    seconds): expensive values, such as a large cluster's status, are computed rarely. Callers that arrive during a load
    share its result or its failure; a failure is not cached."""

    def __init__(
        self,
        load: Callable[[], Awaitable[T]],
        seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        cost_factor: float = 0.0,
    ) -> None:
        self._load = load
        self._seconds = seconds
        self._cost_factor = cost_factor
        self._monotonic = monotonic
        self._loading: asyncio.Task[T] | None = None
        self._value: T | None = None
        self._until = float("-inf")

    async def get_value(self) -> T:
        if self._value is not None and self._monotonic() < self._until:
            return self._value
        if self._loading is None or self._loading.done():
            self._loading = asyncio.ensure_future(self._refresh())
        # Shielded: the first caller may be cancelled while others wait for the same load.
        return await asyncio.shield(self._loading)

    async def _refresh(self) -> T:
        began = self._monotonic()
        value = await self._load()
        ended = self._monotonic()
        cost_seconds = min(self._cost_factor * (ended - began), _MAX_SECONDS)
        self._value, self._until = value, ended + max(self._seconds, cost_seconds)
        return value


class CachedPlans:
    """The published plans for views, at most `seconds` old."""

    def __init__(self, plans: PlanStore, seconds: float) -> None:
        self._cached = CachedValue(plans.refresh, seconds)

    async def refresh(self) -> Mapping[str, QueuePlan]:
        return await self._cached.get_value()


class SerializedUnreleasedView:
    """An UnreleasedView for concurrent callers: one read at a time; each caller gets a read begun after its call."""

    def __init__(self, view: UnreleasedView) -> None:
        self._view = view
        self._lock = asyncio.Lock()

    async def refresh(self) -> list[Reservation]:
        async with self._lock:
            return await self._view.refresh()
