"""Notes whom the planning loop has looked at, so that others can tell a request that is neglected from one that waits.
Now and then only: what matters is minutes."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations.reservation import Reservation
from gpudev.ports.reconciling import LookStore
from gpudev.ports.reservations import Lease

_EVERY = timedelta(seconds=20)


class Looking:
    def __init__(self, store: LookStore) -> None:
        self._store = store
        self._last: tuple[int, datetime] | None = None

    async def note(
        self, lease: Lease, reservations: Sequence[Reservation], broken: Collection[str], now: datetime
    ) -> None:
        """`broken`: types that could not be planned, so that nobody of them was looked at."""
        if self._last is not None:
            epoch, at = self._last
            if epoch == lease.epoch and timedelta(0) <= now - at < _EVERY:
                return
        by_type: defaultdict[str, list[int]] = defaultdict(list)
        for row in reservations:
            if row.status.is_waiting and row.gpu_type not in broken:
                by_type[row.gpu_type].append(row.seq)
        await self._store.note(lease, by_type, now)
        self._last = (lease.epoch, now)

    async def orphans_seen(self) -> Mapping[ReservationId, datetime]:
        return await self._store.orphans_seen()

    async def set_orphans_seen(self, first_seen: Mapping[ReservationId, datetime]) -> None:
        await self._store.set_orphans_seen(first_seen)
