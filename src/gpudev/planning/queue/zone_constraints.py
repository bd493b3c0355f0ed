"""Zone constraints: a request with a disk runs in the disk's zone, or where the disk can be restored sooner.

A volume cannot leave its zone. If it can be restored elsewhere, the request may start there, if that and the restore
are faster than waiting in its own zone. The timetable finds the slots.
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
        """Nodes in these zones, and nodes without a zone."""
        ranks = self._ranks.get(zones)
        if ranks is None:
            ranks = frozenset(rank for rank, node in enumerate(self._nodes) if node.zone is None or node.zone in zones)
            self._ranks[zones] = ranks
        return ranks

    def allows(self, request: Request, ranks: Iterable[int]) -> bool:
        anchor = request.zone_constraint
        return anchor is None or anchor.move_time is not None or self.ranks_in_zones(anchor.zones).issuperset(ranks)

    def is_outside_zones(self, request: Request, slot: TimeSlot | None) -> bool:
        anchor = request.zone_constraint
        return anchor is not None and slot is not None and not self.ranks_in_zones(anchor.zones).issuperset(slot.ranks)

    def find_slot(self, timetable: Timetable, request: Request, duration: int) -> TimeSlot | None:
        """The slot with the earliest ready time, including a move of the disk. None: there will never be one."""
        anchor, units, node_count = request.zone_constraint, request.units_per_node, request.node_count
        if anchor is None:
            return timetable.find_slot(units, node_count, duration)
        home = timetable.find_slot(units, node_count, duration, self.ranks_in_zones(anchor.zones))
        if anchor.move_time is None or (home is not None and home.start <= timetable.now):
            return home
        away = timetable.find_slot(units, node_count, duration)
        return away if away is not None and is_move_faster(anchor, home, away) else home

    def searched_ranks(self, request: Request, slot: TimeSlot | None) -> Ranks | None:
        """The nodes among which its slot was searched. None: all."""
        if request.zone_constraint is None or self.is_outside_zones(request, slot):
            return None
        return self.ranks_in_zones(request.zone_constraint.zones)


def is_move_faster(zone_constraint: ZoneConstraint, home: TimeSlot | None, away: TimeSlot) -> bool:
    """Whether moving the disk is faster than waiting in its zone."""
    if zone_constraint.move_time is None:
        return False
    return home is None or away.start + to_microseconds(zone_constraint.move_time) < home.start


# Zone constraints of reservations with disks.
#
# Moving a disk means a new volume in the other zone, from a snapshot of its current state. That needs a completed
# snapshot: the time for a new one is unknown, and meanwhile the reservation would hold GPUs it cannot use.


def make_zone_constraint(disk_name: str, location: DiskLocation, move_takes: timedelta) -> ZoneConstraint:
    return ZoneConstraint(disk_name, frozenset({location.zone}), move_takes if location.is_saved else None)


def constrain_to_disks(
    waiting: Iterable[Reservation], locations: Mapping[DiskId, DiskLocation], move_takes: timedelta
) -> dict[ReservationId, ZoneConstraint]:
    """For requests whose disk has a volume. A disk without one gets it where its reservation starts."""
    return {
        row.reservation_id: make_zone_constraint(row.disk_name or "", slot, move_takes)
        for row in waiting
        if row.disk_id is not None and (slot := locations.get(row.disk_id)) is not None
    }
