"""Input of the planner for one GPU type: nodes, allocations with their latest ends, queued requests.

Decides what counts: a node that is not ready, cordoned or gone offers nothing; unmanaged use never ends; an overdue
reservation counts until it is confirmed gone.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from gpudev.domain.cluster import Allocation, Node, ZoneConstraint
from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.queue.fair_share import queue_order
from gpudev.planning.queue.node_timelines import NodeTimeline
from gpudev.planning.queue.plan import Request
from gpudev.settings import TimingSettings

_SECONDS_PER_DAY = 86_400
_MICROSECONDS = 1_000_000


class HeldShare(NamedTuple):
    """One reservation's share of one node. (A tuple, because every plan creates thousands.)"""

    until: int
    """Microseconds from now; always in the future."""
    units: int
    gpu_indices: tuple[int, ...]
    reservation_id: ReservationId
    overdue: bool


@dataclass(frozen=True, slots=True)
class TypeFacts:
    gpu_type: str
    now: datetime
    all_nodes: Sequence[Node]
    """All nodes of the type, whatever their state."""
    nodes: Sequence[Node]
    """Nodes that accept new work, by name. A node's rank is its index here."""
    held: Sequence[Sequence[HeldShare]]
    """By rank."""

    def timelines(self) -> list[NodeTimeline]:
        return [
            NodeTimeline(rank, node.units, reservable_units(node), [held[:2] for held in self.held[rank]])
            for rank, node in enumerate(self.nodes)
        ]


def reservable_units(node: Node) -> int:
    """Units that reservations can use: all but those in unmanaged use."""
    return node.units - max(node.foreign_units, len(node.foreign_indices))


def to_microseconds(span: timedelta) -> int:
    return (span.days * _SECONDS_PER_DAY + span.seconds) * _MICROSECONDS + span.microseconds


def duration_microseconds(request: Request) -> int:
    """In microseconds, at least 1."""
    return max(1, to_microseconds(request.duration))


def split_by_type(
    nodes: Sequence[Node],
    allocations: Sequence[Allocation],
    queue: Sequence[Request],
    now: datetime,
    margin: timedelta,
) -> Iterator[tuple[TypeFacts, list[Request]]]:
    """For each requested type: its facts, and its requests in queue order."""
    requests: dict[str, list[Request]] = {}
    for request in sorted(queue, key=queue_order):
        requests.setdefault(request.gpu_type, []).append(request)
    known: dict[str, list[Node]] = {gpu_type: [] for gpu_type in requests}
    for node in nodes:
        if node.gpu_type in known:
            known[node.gpu_type].append(node)
    held = _held_by_node((node for same in known.values() for node in same), allocations, now, margin)
    for gpu_type in sorted(requests):
        yield _make_type_facts(gpu_type, known[gpu_type], held, now), requests[gpu_type]


def gather_type_facts(
    gpu_type: str, nodes: Sequence[Node], allocations: Sequence[Allocation], now: datetime, margin: timedelta
) -> TypeFacts:
    """The same for one type, requested or not."""
    known = [node for node in nodes if node.gpu_type == gpu_type]
    return _make_type_facts(gpu_type, known, _held_by_node(known, allocations, now, margin), now)


def _make_type_facts(
    gpu_type: str, all_nodes: list[Node], held: Mapping[str, list[HeldShare]], now: datetime
) -> TypeFacts:
    offering = sorted((node for node in all_nodes if node.offers), key=lambda node: node.name)
    return TypeFacts(gpu_type, now, all_nodes, offering, [held[node.name] for node in offering])


def _held_by_node(
    nodes: Iterable[Node], allocations: Sequence[Allocation], now: datetime, margin: timedelta
) -> dict[str, list[HeldShare]]:
    held: dict[str, list[HeldShare]] = {node.name: [] for node in nodes}
    cleared_by = max(1, to_microseconds(margin))
    for allocation in allocations:
        left = 0 if allocation.until is None else to_microseconds(allocation.until - now)
        overdue = left <= 0
        until = cleared_by if overdue else left
        for share in allocation.shares:
            if share.node in held:
                # Contradictory facts: take the conservative value.
                units = max(share.units, len(share.gpu_indices))
                held[share.node].append(HeldShare(until, units, share.gpu_indices, allocation.reservation_id, overdue))
    return held


# Worst-case durations, with margins for preparation and teardown.
#
# Margins enter only here: the planner gets the latest times at which units become free. So its starts are guarantees
# that hold even if another reservation starts or ends slowly.


def to_request(
    reservation: Reservation, timing: TimingSettings, fair_rank: int = 0, zone_constraint: ZoneConstraint | None = None
) -> Request:
    """A queued reservation as the planner sees it."""
    return Request(
        reservation_id=reservation.reservation_id,
        seq=reservation.seq,
        gpu_type=reservation.gpu_type,
        units_per_node=max(1, reservation.gpu_count // reservation.node_count),
        node_count=reservation.node_count,
        duration=reservation.duration + timing.reservation_overhead,
        priority=reservation.priority,
        slots=reservation.gpu_count == 0,
        fair_rank=fair_rank,
        zone_constraint=zone_constraint,
    )


def to_allocation(reservation: Reservation, now: datetime, timing: TimingSettings) -> Allocation | None:
    """Its allocation, with the latest time at which it is free again."""
    if reservation.is_released or not reservation.shares:
        return None
    return Allocation(
        reservation.reservation_id,
        reservation.gpu_type,
        reservation.shares,
        _latest_free_time(reservation, now, timing),
    )


def _latest_free_time(reservation: Reservation, now: datetime, timing: TimingSettings) -> datetime | None:
    if reservation.status.is_terminal:
        ended = reservation.reservation_ended
        return None if ended is None else ended + timing.teardown_margin
    if reservation.status is Status.ACTIVE and reservation.expires_at is not None:
        return reservation.expires_at + timing.teardown_margin
    if reservation.is_being_requeued:
        return None
    begun = reservation.preparing_at or now
    # Its time starts when it is ready. If it is already late, it may be ready at any moment.
    ready_by = max(begun + timing.preparing_margin, now)
    return ready_by + reservation.duration + timing.teardown_margin


# Input of one GPU type, from all unreleased reservations.


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
    """In queue order."""
    is_fair_share: bool = False
    """True: earlier estimates do not bind, because newcomers with less usage go first."""

    def facts(self) -> TypeFacts:
        return gather_type_facts(self.gpu_type, self.nodes, self.allocations, self.now, self.timing.teardown_margin)

    def launch_times(self) -> dict[ReservationId, datetime]:
        """Launch times of reservations with an allocation."""
        return {row.reservation_id: row.launched_at for row in self.holding_reservations if row.launched_at is not None}

    def preparing(self) -> list[Reservation]:
        return [row for row in self.holding_reservations if row.status is Status.PREPARING]


class RowCache:
    """Requests and allocations of the last cycle: most of the many rows do not change between cycles."""

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
            fair_rank = fair_ranks.get(row.reservation_id, 0)
            zone_constraint = zone_constraints.get(row.reservation_id) if zone_constraints else None
            before = self._requests.get(row.reservation_id)
            if before is None or before[0] is not row or before[1] != fair_rank or before[2] != zone_constraint:
                before = (row, fair_rank, zone_constraint, to_request(row, timing, fair_rank, zone_constraint))
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
        return [allocation for _, allocation in made.values() if allocation is not None]


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
    """`reservations`: all unreleased, of any type; `nodes`: all. `fair_ranks` None: fair share is off.
    `zone_constraints`: of queued requests with a disk."""
    cache = cache or RowCache()
    waiting = [
        row for row in reservations if row.gpu_type == gpu_type and row.status.is_waiting and not row.is_being_requeued
    ]
    own_nodes = [node for node in nodes if node.gpu_type == gpu_type]
    names = {node.name for node in own_nodes}
    # Allocations of any type: a node may have come back with another type.
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
