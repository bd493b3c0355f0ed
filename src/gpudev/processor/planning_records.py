"""Records which requests the planner has examined, to tell stale requests from queued ones.

Written now and then only: minutes matter here, not seconds.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations.reservation import Reservation
from gpudev.ports.leases import Lease
from gpudev.ports.queue import PlanningRecordStore

_RECORD_EVERY = timedelta(seconds=20)


class PlanningRecorder:
    def __init__(self, store: PlanningRecordStore) -> None:
        self._store = store
        self._last: tuple[int, datetime] | None = None

    async def record_examined(
        self, lease: Lease, reservations: Sequence[Reservation], broken: Collection[str], now: datetime
    ) -> None:
        """`broken`: types that could not be planned, so that nobody of them was looked at."""
        if self._last is not None:
            epoch, at = self._last
            if epoch == lease.epoch and timedelta(0) <= now - at < _RECORD_EVERY:
                return
        by_type: defaultdict[str, list[int]] = defaultdict(list)
        for row in reservations:
            if row.status.is_waiting and row.gpu_type not in broken:
                by_type[row.gpu_type].append(row.seq)
        await self._store.record_examined(lease, by_type, now)
        self._last = (lease.epoch, now)

    async def load_orphans(self) -> Mapping[ReservationId, datetime]:
        return await self._store.load_orphans()

    async def save_orphans(self, first_observed: Mapping[ReservationId, datetime]) -> None:
        await self._store.save_orphans(first_observed)
