"""Incremental planner for one GPU type: applies one arrival or release in milliseconds, whatever the queue's length.

Between two full plans, planned starts stay as they are. Freed units go, in queue order, to requests that can start on
them at once without touching other planned starts (backfill). So no planned start becomes later, and no request waits
that could start. Only a full plan moves up requests that cannot start yet (`replan`).

Time advances between calls. Due planned starts are taken (`collect_starts`). An overdue allocation blocks its units
until it is removed. If the facts no longer fit the plan (a node changed, an end was missed or moved onto a planned
start, many changes at once), a full plan is made, with the planned starts so far as promises.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache

from gpudev.domain.cluster import Allocation, Node, NodeShare
from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import Estimate
from gpudev.planning.queue.node_timelines import TimeSlot
from gpudev.planning.queue.occupancy import Occupancy
from gpudev.planning.queue.plan import Queued, Request, Start
from gpudev.planning.queue.planner import DEFAULT_MARGIN, make_type_plan
from gpudev.planning.queue.queue_index import PlannedStarts, QueueIndex, SlotEnds, order_key
from gpudev.planning.queue.queue_input import duration_microseconds, gather_type_facts, to_microseconds
from gpudev.planning.queue.wait_reasons import BlockingReservation, explain_no_start, explain_wait
from gpudev.planning.queue.zone_constraints import Ranks, ZoneFilter

_MOST_INCREMENTAL_CHANGES = 32
"""With more changes at once, a full plan is cheaper."""

_RECHECK_MICROSECONDS = 1_000_000

FreeNow = Callable[[Ranks | None], tuple[int, Mapping[int, int]]]
"""Among these nodes (None: all): the most free units on one node, and the number of free whole nodes by size."""


@dataclass(frozen=True, slots=True)
class PlanUpdate:
    starts: tuple[Start, ...]
    waits: tuple[Queued, ...]
    """Requests with a new planned start: newcomers, or all after a full plan."""
    remade: bool
    """Whether a full plan was made."""


class IncrementalPlanner:
    def __init__(
        self,
        gpu_type: str,
        nodes: Sequence[Node],
        allocations: Sequence[Allocation],
        queue: Sequence[Request],
        *,
        now: datetime,
        margin: timedelta = DEFAULT_MARGIN,
        promises: Mapping[ReservationId, Estimate] | None = None,
    ) -> None:
        """Makes a full plan. `nodes` of the type, all allocations on them, and the requests of the type. The first
        `collect_starts` returns what starts at once."""
        self._gpu_type = gpu_type
        self._margin = margin
        self._full_plans = 0
        self._make_full_plan(nodes, allocations, queue, now, promises or {})

    @property
    def next_at(self) -> datetime | None:
        """When the next planned start is due, or when to check again one whose nodes should be free by now."""
        due = self._planned_starts.first_due()
        if due is None:
            return None
        start = self._planned_starts.get_slot(due).start
        return self._to_datetime(start if start > self._occupancy.now else self._occupancy.now + _RECHECK_MICROSECONDS)

    def add_request(self, request: Request, now: datetime) -> Start | Queued:
        """Plans it at the earliest start that touches no other planned start."""
        self._advance(now)
        self._extend_overdue(now)
        if self._queue.has_lower_priority(request):
            return self._add_prioritised(request, now)
        timetable, duration = self._occupancy.timetable, duration_microseconds(request)
        timetable.ensure_size(request.units_per_node)
        slot = self._zone_filter.find_slot(timetable, request, duration)
        self._queue.add(request)
        if slot is None:
            return self._make_queued(request, None)
        if slot.start <= self._occupancy.now and self._is_unheld(slot.ranks, request.units_per_node):
            return self._start(request, slot.ranks, taken_until=self._occupancy.now)
        timetable.take(slot, request.units_per_node, duration)
        self._planned_starts.assign(request, slot)
        return self._make_queued(request, slot)

    def _add_prioritised(self, request: Request, now: datetime) -> Start | Queued:
        """Requests with a lower priority give way: a full plan. The next `collect_starts` returns other starts."""
        self._queue.add(request)
        self.replan(now)
        slot = self._planned_starts.find_slot(request.reservation_id)
        if (
            slot is not None
            and slot.start <= self._occupancy.now
            and self._is_unheld(slot.ranks, request.units_per_node)
        ):
            self._planned_starts.unassign(request)
            return self._start(request, slot.ranks, taken_until=slot.start + duration_microseconds(request))
        return self._make_queued(request, slot)

    def collect_starts(self, now: datetime) -> tuple[Start, ...]:
        """Requests that start now: due planned starts, then backfill."""
        self._advance(now)
        self._extend_overdue(now)
        starts = list(self._start_due())
        late = self._first_due_now()
        if late is not None and self._planned_starts.get_slot(late).start < self._occupancy.now:
            self.replan(now)
            starts += self._start_due()
        return (*starts, *self._backfill())

    def replan(self, now: datetime) -> None:
        """A full plan from the known facts: moves up every request that can. Call `collect_starts` next."""
        self._make_full_plan(
            self._nodes, list(self._occupancy.allocations.values()), list(self._queue), now, self._promises()
        )

    def update(
        self, nodes: Sequence[Node], allocations: Sequence[Allocation], queue: Sequence[Request], now: datetime
    ) -> PlanUpdate:
        """Applies the current facts: incrementally if few changed, else with a full plan."""
        full_plans = self._full_plans
        # By integer: UUIDs compare and hash slowly, and there are many thousands.
        held = {allocation.reservation_id.int: allocation for allocation in allocations}
        requests = {request.reservation_id.int: request for request in queue}
        known_held = {key.int: allocation for key, allocation in self._occupancy.allocations.items()}
        known_requests = {request.reservation_id.int: request for request in self._queue}
        removed = [known_held[key].reservation_id for key in known_held.keys() - held.keys()]
        removed += [known_requests[key].reservation_id for key in known_requests.keys() - requests.keys()]
        added = [requests[key] for key in requests.keys() - known_requests.keys()]
        results: list[Start | Queued] = []
        if (
            len(removed) + len(added) <= _MOST_INCREMENTAL_CHANGES
            and self._nodes == tuple(nodes)
            and not any(self._queue.has_lower_priority(request) for request in added)
            and held.keys() <= known_held.keys()
            and held.keys().isdisjoint(requests)
            and all(
                _is_unchanged(requests[key], known_requests[key]) for key in requests.keys() & known_requests.keys()
            )
            and self._move_ends([(known_held[key], allocation) for key, allocation in held.items()], now)
        ):
            for key in sorted(removed):
                self._remove(key)
            results += self.collect_starts(now)
            results += [self.add_request(request, now) for request in sorted(added, key=order_key)]
        else:
            self._make_full_plan(nodes, allocations, queue, now, self._promises())
            results += self.collect_starts(now)
        starts = tuple(result for result in results if isinstance(result, Start))
        if self._full_plans != full_plans:
            return PlanUpdate(starts, tuple(self.iter_queued()), remade=True)
        return PlanUpdate(starts, tuple(result for result in results if isinstance(result, Queued)), remade=False)

    def iter_queued(self) -> Iterator[Queued]:
        """All queued requests, in queue order."""
        free: FreeNow = cache(self._occupancy.free_now)
        ends = self._planned_starts.find_ends(self._queue)
        for position, request in enumerate(self._queue, 1):
            slot = self._planned_starts.find_slot(request.reservation_id)
            yield self._describe_queued(request, slot, position, free, ends)

    def _make_full_plan(
        self,
        nodes: Sequence[Node],
        allocations: Sequence[Allocation],
        queue: Sequence[Request],
        now: datetime,
        promises: Mapping[ReservationId, Estimate],
    ) -> None:
        self._full_plans += 1
        self._nodes = tuple(nodes)
        facts = gather_type_facts(self._gpu_type, nodes, allocations, now, self._margin)
        self._zone_filter = ZoneFilter(facts.nodes)
        self._queue = QueueIndex(request for request in queue if request.gpu_type == self._gpu_type)
        type_plan = make_type_plan(facts, list(self._queue), promises)
        self._occupancy = Occupancy(facts, type_plan.timetable, allocations, to_microseconds(self._margin))
        self._planned_starts = PlannedStarts(self._queue, len(facts.nodes))
        for request in self._queue:
            slot = type_plan.planned_starts.get(request.reservation_id)
            if slot is not None:
                self._planned_starts.assign(request, slot)
        self._touched_ranks: set[int] = set()
        """Nodes with units freed since the last backfill."""

    def _advance(self, now: datetime) -> None:
        self._occupancy.advance(to_microseconds(now - self._occupancy.origin))

    def _extend_overdue(self, now: datetime) -> None:
        """Call it after removing what is gone."""
        if not self._occupancy.extend_overdue():
            self.replan(now)

    def _move_ends(self, held: Iterable[tuple[Allocation, Allocation]], now: datetime) -> bool:
        """`held`: (before, after). False: an allocation moved, or its new end collides with a planned start."""
        self._advance(now)
        changed = [(was, allocation) for was, allocation in held if allocation is not was]
        if any(allocation.shares != was.shares for was, allocation in changed):
            return False
        return all(self._occupancy.move_end(allocation) for was, allocation in changed if allocation.until != was.until)

    def _remove(self, reservation_id: ReservationId) -> None:
        request = self._queue.find_request(reservation_id)
        if request is not None:
            self._free_slot(request)
            self._queue.remove(request)
        else:
            self._touched_ranks.update(self._occupancy.remove_allocation(reservation_id))

    def _start_due(self) -> Iterator[Start]:
        """Due planned starts, up to one whose units are not free."""
        while (request := self._first_due_now()) is not None:
            slot, duration = self._planned_starts.get_slot(request), duration_microseconds(request)
            planned, units = slot.start + duration, request.units_per_node
            beyond = TimeSlot(planned, slot.ranks)  # it starts late, so it ends late
            if not self._is_unheld(slot.ranks, units):
                return
            if slot.start < self._occupancy.now and not self._occupancy.timetable.is_free(
                beyond, units, self._occupancy.now - slot.start
            ):
                return
            self._planned_starts.unassign(request)
            yield self._start(request, slot.ranks, taken_until=planned)

    def _is_unheld(self, ranks: Sequence[int], units: int) -> bool:
        """Whether the units are really free, not only by plan."""
        return all(self._occupancy.unheld_units(rank) >= units for rank in ranks)

    def _first_due_now(self) -> Request | None:
        request = self._planned_starts.first_due()
        if request is None or self._planned_starts.get_slot(request).start > self._occupancy.now:
            return None
        return request

    def _backfill(self) -> Iterator[Start]:
        """Starts the first request in queue order that fits on a touched node, then the next, until none fits."""
        while self._touched_ranks:
            found: list[tuple[int, int, tuple[int, ...]]] = []
            for rank in sorted(self._touched_ranks):
                first = self._find_first_fitting(rank)
                if first is None:
                    self._touched_ranks.discard(rank)
                else:
                    order, ranks = first
                    found.append((order, self._occupancy.unheld_units(rank), ranks))
            if found:
                order, _, ranks = min(found)
                request = self._queue.find_by_order(order)
                assert request is not None
                self._free_slot(request)
                yield self._start(request, ranks, taken_until=self._occupancy.now)

    def _find_first_fitting(self, rank: int) -> tuple[int, tuple[int, ...]] | None:
        """The first request in queue order that could start on this node now without touching other planned starts: its
        order and its nodes."""
        candidates: list[int] = []
        line = self._occupancy.timetable.timelines[rank]
        free = self._occupancy.unheld_units(rank)
        for units, zones in self._queue.shapes():
            if units <= free and (zones is None or rank in self._zone_filter.ranks_in_zones(zones)):
                order = self._queue.first_fitting((units, zones), line.free_duration(self._occupancy.now, units))
                if order is not None:
                    candidates.append(order)
        for key in self._planned_starts.requests_on(rank):  # their own planned start is no obstacle
            request = self._queue.find_request(key)
            if request is not None and request.node_count == 1 and self._fits_without_own_slot(request, rank):
                candidates.append(order_key(request))
        best = min(candidates, default=None)
        if line.units <= free:
            for order, gang in self._queue.gangs():
                if best is not None and order > best:
                    break
                ranks = self._find_gang_nodes(gang, rank)
                if ranks is not None:
                    return order, ranks
        return None if best is None else (best, (rank,))

    def _fits_without_own_slot(self, request: Request, rank: int) -> bool:
        slot, duration = self._planned_starts.get_slot(request), duration_microseconds(request)
        return self._occupancy.fits_without(slot, rank, request.units_per_node, duration)

    def _find_gang_nodes(self, gang: Request, rank: int) -> tuple[int, ...] | None:
        """The nodes on which it could start now, including this one."""
        units, duration = gang.units_per_node, duration_microseconds(gang)
        line = self._occupancy.timetable.timelines[rank]
        if line.units != units:
            return None
        slot = self._planned_starts.find_slot(gang.reservation_id)
        own = () if slot is None else slot.ranks
        if line.free_duration(self._occupancy.now, units) < duration and rank not in own:
            return None
        ranks = self._occupancy.timetable.whole_nodes_free_now(units, duration)
        if gang.zone_constraint is not None:
            ranks &= self._zone_filter.ranks_in_zones(gang.zone_constraint.zones)
        ranks.update(each for each in own if self._fits_without_own_slot(gang, each))
        fitting = sorted(each for each in ranks if self._occupancy.unheld_units(each) >= units)
        if rank not in fitting or len(fitting) < gang.node_count:
            return None
        return tuple(fitting[: gang.node_count])

    def _free_slot(self, request: Request) -> None:
        """Gives up its planned start, if it has one."""
        slot = self._planned_starts.unassign(request)
        if slot is not None:
            self._occupancy.free_slot(slot, request.units_per_node, duration_microseconds(request))
            self._touched_ranks.update(slot.ranks)

    def _start(self, request: Request, ranks: Sequence[int], taken_until: int) -> Start:
        """Its planned start must be unassigned already."""
        self._queue.remove(request)
        shares = tuple(
            NodeShare(
                number,
                self._occupancy.nodes[rank].name,
                request.units_per_node,
                self._occupancy.choose_gpus(request, rank),
            )
            for number, rank in enumerate(ranks)
        )
        until = self._to_datetime(self._occupancy.now + duration_microseconds(request))
        self._occupancy.add_allocation(Allocation(request.reservation_id, request.gpu_type, shares, until), taken_until)
        return Start(request.reservation_id, shares)

    def _promises(self) -> dict[ReservationId, Estimate]:
        """All planned starts as promises; position and reason are not used."""
        names = [node.name for node in self._occupancy.nodes]
        return {
            key: Estimate(0, self._to_datetime(slot.start), None, "", tuple(names[rank] for rank in slot.ranks))
            for key, slot in self._planned_starts
        }

    def _to_datetime(self, time: int) -> datetime:
        return self._occupancy.origin + timedelta(microseconds=time)

    def _make_queued(self, request: Request, slot: TimeSlot | None) -> Queued:
        position = self._queue.position(request)
        ends = {} if slot is None else self._planned_starts.find_ends_on_nodes(slot)
        return self._describe_queued(request, slot, position, self._occupancy.free_now, ends)

    def _describe_queued(
        self,
        request: Request,
        slot: TimeSlot | None,
        position: int,
        free: FreeNow,
        ends: SlotEnds,
    ) -> Queued:
        if slot is None:
            reason = explain_no_start(request, self._nodes, self._occupancy.nodes)
            return Queued(request.reservation_id, Estimate(position, None, None, reason))
        ending = next(filter(None, (self._occupancy.find_blocker(rank, slot.start) for rank in slot.ranks)), None)
        if ending is None:
            waiting = next((key for rank in slot.ranks if (key := ends.get((rank, slot.start)))), None)
            ending = None if waiting is None else BlockingReservation(waiting, waiting=True)
        best, whole = free(self._zone_filter.searched_ranks(request, slot))
        moves = self._zone_filter.is_outside_zones(request, slot)
        reason = explain_wait(request, best, whole.get(request.units_per_node, 0), position - 1, ending, moves=moves)
        names = tuple(self._occupancy.nodes[rank].name for rank in slot.ranks)
        return Queued(request.reservation_id, Estimate(position, self._to_datetime(slot.start), None, reason, names))


def _is_unchanged(before: Request, after: Request) -> bool:
    """Whether nothing changed that the plan depends on. Both have the same id."""
    return before is after or (
        before.duration == after.duration
        and before.priority == after.priority
        and before.fair_rank == after.fair_rank
        and before.seq == after.seq
        and before.units_per_node == after.units_per_node
        and before.node_count == after.node_count
        and before.zone_constraint == after.zone_constraint
    )
