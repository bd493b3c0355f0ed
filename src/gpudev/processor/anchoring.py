"""Where the disks of those who wait are: looked up when somebody comes, and again now and then, because a snapshot that
is finished by now lets a disk move. It decides nothing."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from gpudev.domain.cluster import Anchor
from gpudev.domain.ids import DiskId, ReservationId
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.disk_zones import anchors_of
from gpudev.ports.cluster import ClusterSeen
from gpudev.ports.disks import DiskPlace, DiskPlaces

_LOOK_AGAIN = timedelta(seconds=10)


class Anchoring:
    def __init__(self, places: DiskPlaces, move_takes: timedelta) -> None:
        self._places = places
        self._move_takes = move_takes
        self._known: dict[DiskId, DiskPlace | None] = {}
        self._looked_at: datetime | None = None
        self.anchors: Mapping[ReservationId, Anchor] = {}
        """Of those who wait. Never changed, only replaced."""

    async def refresh(self, reservations: Sequence[Reservation], seen: ClusterSeen, now: datetime) -> None:
        if not any(node.zone for node in seen.nodes):  # volumes do not care where they are used
            self.anchors = {}
            return
        waiting = [row for row in reservations if row.disk_id is not None and row.status.is_waiting]
        wanted = {row.disk_id for row in waiting if row.disk_id is not None}
        self._known = {disk_id: place for disk_id, place in self._known.items() if disk_id in wanted}
        if self._looked_at is None or not timedelta(0) <= now - self._looked_at < _LOOK_AGAIN:
            self._known, self._looked_at = {}, now
        unknown = wanted - self._known.keys()
        if unknown:
            found = await self._places.find(sorted(unknown))
            self._known |= {disk_id: found.get(disk_id) for disk_id in unknown}
        places = {disk_id: place for disk_id, place in self._known.items() if place is not None}
        self.anchors = anchors_of(waiting, places, self._move_takes)
