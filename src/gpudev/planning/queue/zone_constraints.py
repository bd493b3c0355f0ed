"""Zone constraints: a request with a disk runs in the disk's zone, or where the disk can be restored sooner.

A volume cannot leave its zone. Where it can be restored elsewhere, the request may go there, if starting there and
waiting for the volume is faster than waiting in its own zone. Free time is the timelines' concern.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from gpudev.domain.cluster import Node, ZoneConstraint
from gpudev.domain.ids import DiskId, ReservationId
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.queue.node_timelines import TimeSlot, Timetable
from gpudev.planning.queue.plan import Request
from gpudev.planning.queue.queue_input import to_microseconds
from gpudev.ports.disks import DiskLocation

Ranks = frozenset[int]


class ZoneFilter:
    def __init__(self, nodes: Sequence[Node]) -> None:
        """`nodes` by rank."""
        self._nodes = nodes
        self._ranks: dict[frozenset[str], Ranks] = {}

    def ranks_in_zones(self, zones: frozenset[str]) -> Ranks:
        """The nodes in these zones, and those to which zones mean nothing."""
        ranks = self._ranks.get(zones)
        if ranks is None:
            ranks = frozenset(rank for rank, node in enumerate(self._nodes) if node.zone is None or node.zone in zones)
            self._ranks[zones] = ranks
        return ranks

    def allows(self, request: Request, ranks: Iterable[int]) -> bool:
        anchor = request.zone_constraint
        return anchor is None or anchor.move_time is not None or self.ranks_in_zones(anchor.zones).issuperset(ranks)

    def is_outside_zones(self, request: Request, place: TimeSlot | None) -> bool:
        anchor = request.zone_constraint
        return (
            anchor is not None and place is not None and not self.ranks_in_zones(anchor.zones).issuperset(place.ranks)
        )

    def find_slot(self, timetable: Timetable, request: Request, duration: int) -> TimeSlot | None:
        """The earliest place, or the one by which it is ready the earliest. None: there will never be one."""
        anchor, units, node_count = request.zone_constraint, request.units_per_node, request.node_count
        if anchor is None:
            return timetable.find_slot(units, node_count, duration)
        home = timetable.find_slot(units, node_count, duration, self.ranks_in_zones(anchor.zones))
        if anchor.move_time is None or (home is not None and home.start <= timetable.now):
            return home
        away = timetable.find_slot(units, node_count, duration)
        return away if away is not None and is_move_faster(anchor, home, away) else home

    def searched_ranks(self, request: Request, place: TimeSlot | None) -> Ranks | None:
        """Among which nodes its place was looked for; None: all of them."""
        if request.zone_constraint is None or self.is_outside_zones(request, place):
            return None
        return self.ranks_in_zones(request.zone_constraint.zones)


def is_move_faster(zone_constraint: ZoneConstraint, home: TimeSlot | None, away: TimeSlot) -> bool:
    """Whether moving the disk takes less time than waiting for a place where it is."""
    if zone_constraint.move_time is None:
        return False
    return home is None or away.start + to_microseconds(zone_constraint.move_time) < home.start


# Zone constraints of reservations with disks.
#
# Moving a disk means a new volume in the other zone, from a snapshot of exactly what is on it. Only a finished
# snapshot makes that possible: nobody knows how long the cloud takes for another, and meanwhile the reservation would
# hold GPUs it cannot use.


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
