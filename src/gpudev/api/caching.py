"""Cached responses: computed once for all who ask within a moment."""

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
    """`get` gives what `load` gave at most `seconds` ago, or `times` as long ago as loading it took (two seconds at the
    most): what is dear to make (a large cluster's numbers) is made rarely, so that making it never keeps others waiting
    for long. Those who ask while it loads wait for that one load; a failure is theirs too, and is not remembered."""

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
        # Shielded: the one who asked first may leave, the others still want the answer.
        return await asyncio.shield(self._loading)

    async def _refresh(self) -> T:
        began = self._monotonic()
        value = await self._load()
        ended = self._monotonic()
        dear = min(self._cost_factor * (ended - began), _MAX_SECONDS)
        self._value, self._until = value, ended + max(self._seconds, dear)
        return value


class CachedPlans:
    """The published plans for many who only look: a moment old at most."""

    def __init__(self, plans: PlanStore, seconds: float) -> None:
        self._cached = CachedValue(plans.refresh, seconds)

    async def refresh(self) -> Mapping[str, QueuePlan]:
        return await self._cached.get_value()


class SerializedUnreleasedView:
    """An UnreleasedView for many: each gets what was read after they asked, and no two read at once."""

    def __init__(self, view: UnreleasedView) -> None:
        self._view = view
        self._lock = asyncio.Lock()

    async def refresh(self) -> list[Reservation]:
        async with self._lock:
            return await self._view.refresh()
