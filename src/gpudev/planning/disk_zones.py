"""Where a reservation with a disk may start: where its volume is, or elsewhere if it can be made anew there.

Volumes cannot leave their zone. Moving one means a new volume in the other zone, from a snapshot of exactly what is on
it. Only where there is a finished one is a move worth thinking of: nobody knows how long the cloud takes for another,
and meanwhile the reservation would hold GPUs it cannot use. Who fits on which node is no matter of this module.
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta

from gpudev.domain.cluster import ZoneConstraint
from gpudev.domain.ids import DiskId, ReservationId
from gpudev.domain.reservations.reservation import Reservation
from gpudev.ports.disks import DiskLocation


def make_zone_constraint(disk_name: str, location: DiskLocation, move_takes: timedelta) -> ZoneConstraint:
    return ZoneConstraint(disk_name, frozenset({location.zone}), move_takes if location.is_saved else None)


def constrain_to_disks(
    waiting: Iterable[Reservation], locations: Mapping[DiskId, DiskLocation], move_takes: timedelta
) -> dict[ReservationId, ZoneConstraint]:
    """Of those whose disk is somewhere. One without a volume is made where its reservation starts."""
    return {
        row.reservation_id: make_zone_constraint(row.disk_name or "", place, move_takes)
        for row in waiting
        if row.disk_id is not None and (place := locations.get(row.disk_id)) is not None
    }
