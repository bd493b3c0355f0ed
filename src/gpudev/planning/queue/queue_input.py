"""What one GPU type's queue is planned from, gathered from everything unreleased: its nodes, what is held on them and
until when at most, who waits and what they ask for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpudev.domain.cluster import Allocation, Node, ZoneConstraint
from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.facts import TypeFacts, gather_type_facts, queue_order
from gpudev.planning.queue.plan import Request
from gpudev.planning.spans import to_allocation, to_request
from gpudev.settings import TimingSettings


@dataclass(frozen=True, slots=True)
class QueueInput:
    gpu_type: str
    now: datetime
    timing: TimingSettings
    nodes: Sequence[Node]
    waiting: Mapping[ReservationId, Reservation]
    holding_reservations: Sequence[Reservation]
    allocations: Sequence[Allocation]
    requests: Sequence[Request]
    """In the queue's order."""
    is_fair_share: bool = False
    """What was told before does not bind then: who used less may come and go first."""

    def facts(self) -> TypeFacts:
        return gather_type_facts(self.gpu_type, self.nodes, self.allocations, self.now, self.timing.teardown_margin)

    def launch_times(self) -> dict[ReservationId, datetime]:
        """When the clock of those who hold something began to run."""
        return {row.reservation_id: row.launched_at for row in self.holding_reservations if row.launched_at is not None}

    def preparing(self) -> list[Reservation]:
        return [row for row in self.holding_reservations if row.status is Status.PREPARING]


class RowCache:
    """Requests and holdings as they were last made: most rows do not change from turn to turn, and there are many."""

    def __init__(self) -> None:
        self._requests: dict[ReservationId, tuple[Reservation, int, ZoneConstraint | None, Request]] = {}
        self._allocations: dict[ReservationId, tuple[Reservation, Allocation | None]] = {}

    def make_requests(
        self,
        rows: Sequence[Reservation],
        timing: TimingSettings,
        fair_ranks: Mapping[ReservationId, int],
        zone_constraints: Mapping[ReservationId, ZoneConstraint],
    ) -> list[Request]:
        made = {}
        for row in rows:
            turn = fair_ranks.get(row.reservation_id, 0)
            anchor = zone_constraints.get(row.reservation_id) if zone_constraints else None
            before = self._requests.get(row.reservation_id)
            if before is None or before[0] is not row or before[1] != turn or before[2] != anchor:
                before = (row, turn, anchor, to_request(row, timing, turn, anchor))
            made[row.reservation_id] = before
        self._requests = made
        return sorted((request for _, _, _, request in made.values()), key=queue_order)

    def make_allocations(self, rows: Sequence[Reservation], now: datetime, timing: TimingSettings) -> list[Allocation]:
        made = {}
        for row in rows:
            before = self._allocations.get(row.reservation_id)
            if before is None or before[0] is not row or row.status is Status.PREPARING:
                before = (row, to_allocation(row, now, timing))
            made[row.reservation_id] = before
        self._allocations = made
        return [holding for _, holding in made.values() if holding is not None]


def gather_queue_input(
    reservations: Sequence[Reservation],
    nodes: Sequence[Node],
    now: datetime,
    timing: TimingSettings,
    gpu_type: str,
    *,
    fair_ranks: Mapping[ReservationId, int] | None = None,
    zone_constraints: Mapping[ReservationId, ZoneConstraint] | None = None,
    cache: RowCache | None = None,
) -> QueueInput:
    """`reservations`: everything unreleased, of any type; `nodes`: all there are. `turns`: whose turn it is by fair
    share, where that is on. `anchors`: of those who wait and have a disk somewhere."""
    cache = cache or RowCache()
    waiting = [
        row for row in reservations if row.gpu_type == gpu_type and row.status.is_waiting and not row.is_being_requeued
    ]
    own_nodes = [node for node in nodes if node.gpu_type == gpu_type]
    names = {node.name for node in own_nodes}
    # Whatever is held there, by whichever type: a node may have come back as another one.
    holders = [row for row in reservations if row.shares and any(share.node in names for share in row.shares)]
    return QueueInput(
        gpu_type,
        now,
        timing,
        own_nodes,
        {row.reservation_id: row for row in waiting},
        holders,
        cache.make_allocations(holders, now, timing),
        cache.make_requests(waiting, timing, fair_ranks or {}, zone_constraints or {}),
        is_fair_share=fair_ranks is not None,
    )
