"""Where the disks of those who wait are: looked up when somebody comes, and again now and then, because a snapshot that
is finished by now lets a disk move. It decides nothing."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from gpudev.domain.cluster import ZoneConstraint
from gpudev.domain.ids import DiskId, ReservationId
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.disk_zones import constrain_to_disks
from gpudev.ports.cluster import ClusterState
from gpudev.ports.disks import DiskLocation, DiskLocations

_RELOAD_EVERY = timedelta(seconds=10)


class DiskZones:
    def __init__(self, locations: DiskLocations, move_takes: timedelta) -> None:
        self._locations = locations
        self._move_takes = move_takes
        self._location_by_disk: dict[DiskId, DiskLocation | None] = {}
        self._loaded_at: datetime | None = None
        self.zone_constraints: Mapping[ReservationId, ZoneConstraint] = {}
        """Of those who wait. Never changed, only replaced."""

    async def refresh(self, reservations: Sequence[Reservation], state: ClusterState, now: datetime) -> None:
        if not any(node.zone for node in state.nodes):  # volumes do not care where they are used
            self.zone_constraints = {}
            return
        waiting = [row for row in reservations if row.disk_id is not None and row.status.is_waiting]
        wanted = {row.disk_id for row in waiting if row.disk_id is not None}
        self._location_by_disk = {
            disk_id: place for disk_id, place in self._location_by_disk.items() if disk_id in wanted
        }
        if self._loaded_at is None or not timedelta(0) <= now - self._loaded_at < _RELOAD_EVERY:
            self._location_by_disk, self._loaded_at = {}, now
        unknown = wanted - self._location_by_disk.keys()
        if unknown:
            found = await self._locations.find_locations(sorted(unknown))
            self._location_by_disk |= {disk_id: found.get(disk_id) for disk_id in unknown}
        places = {disk_id: place for disk_id, place in self._location_by_disk.items() if place is not None}
        self.zone_constraints = constrain_to_disks(waiting, places, self._move_takes)
