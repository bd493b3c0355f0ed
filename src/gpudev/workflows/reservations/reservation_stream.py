"""Stream of one reservation: its state, every change, and its history, until it has ended.

Wake-ups only make it prompt: it polls every few seconds, so a lost notification delays an update and never hides it.
While the database is away it waits, then continues.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

from gpudev.domain.errors import Unavailable
from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations.reservation import Reservation, ReservationEvent
from gpudev.ports.reservations import ReservationChanges, ReservationStore
from gpudev.wire.reservations import JobEvent, JobView
from gpudev.workflows.reservation_views import ReservationViews, event_view

POLL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ReservationStream:
    reservations: ReservationStore
    changes: ReservationChanges
    views: ReservationViews
    poll_seconds: float = POLL_SECONDS

    async def watch(
        self, reservation_id: ReservationId, after: int = 0
    ) -> AsyncGenerator[JobView | JobEvent | None, None]:
        """First the view, then the history after event `after`, then for each change its events and the view.

        None is a keep-alive. Ends after the view of an ended reservation.
        """
        version, sent = None, None
        async with self.changes.subscribe(reservation_id) as wakes, _Wakeups(wakes) as wakeups:
            while True:
                try:
                    now = await self._load(reservation_id, version, after)
                except Unavailable:
                    yield None
                    await asyncio.sleep(self.poll_seconds)
                    continue
                if now is None:
                    return
                reservation, events = now
                view = await self.views.view(reservation)
                first = sent is None
                if first:
                    yield view
                for event in events:
                    after = event.event_id
                    yield event_view(event)
                if not first and view != sent:
                    yield view
                if reservation.status.is_terminal:
                    return
                version, sent = reservation.version, view
                if not await wakeups.wait_for_next(self.poll_seconds):
                    yield None

    async def _load(
        self, reservation_id: ReservationId, version: int | None, after: int
    ) -> tuple[Reservation, list[ReservationEvent]] | None:
        """The reservation first, then its events: in this order, the last event of an ended one is always included."""
        reservation = await self.reservations.find_reservation(reservation_id)
        if reservation is None:
            return None
        moved = reservation.version != version
        return reservation, await self.reservations.events(reservation_id, after) if moved else []


class _Wakeups:
    """Waits for the next wake-up with a timeout, without cancelling the iterator: an asynchronous generator does not
    survive that."""

    def __init__(self, wakes: AsyncIterator[None]) -> None:
        self._wakes = wakes
        self._next: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> "_Wakeups":
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.wait({self._next})

    async def wait_for_next(self, seconds: float) -> bool:
        if self._next is None:
            self._next = asyncio.ensure_future(_has_next(self._wakes))
        done, _ = await asyncio.wait({self._next}, timeout=seconds)
        if not done:
            return False
        more = self._next.result()
        self._next = None
        if not more:  # the source of wake-ups has ended; only polling is left
            await asyncio.sleep(seconds)
        return bool(more)


async def _has_next(wakes: AsyncIterator[None]) -> bool:
    try:
        await anext(wakes)
    except StopAsyncIteration:
        return False
    return True
