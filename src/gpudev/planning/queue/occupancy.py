"""Occupancy of one GPU type: current allocations, beside the planned timelines.

Keeps both consistent: a start takes units, a release returns them, and overdue allocations are detected. It does not
know the queue.
"""

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

from gpudev.domain.cluster import Allocation
from gpudev.domain.ids import ReservationId
from gpudev.planning.queue.node_timelines import TimeSlot, Timetable
from gpudev.planning.queue.plan import Request
from gpudev.planning.queue.queue_input import TypeFacts, reservable_units, to_microseconds
from gpudev.planning.queue.wait_reasons import BlockingReservation


class Occupancy:
    def __init__(self, facts: TypeFacts, timetable: Timetable, allocations: Sequence[Allocation], margin: int) -> None:
        self.origin = facts.now
        self.nodes = facts.nodes
        self.timetable = timetable
        self.allocations = {allocation.reservation_id: allocation for allocation in allocations}
        self._ranks = {node.name: rank for rank, node in enumerate(facts.nodes)}
        self._held_on_node: list[dict[ReservationId, tuple[int, int]]] = [{} for _ in facts.nodes]
        """By rank: end and units."""
        for rank, there in enumerate(facts.held):
            for held in there:
                _, units = self._held_on_node[rank].get(held.reservation_id, (0, 0))
                self._held_on_node[rank][held.reservation_id] = (held.until, units + held.units)
        self._overdue = {held.reservation_id for there in facts.held for held in there if held.overdue}
        self._used = [sum(held.units for held in there) for there in facts.held]
        self._ends = [(held.until, held.reservation_id) for there in facts.held for held in there]
        heapify(self._ends)
        self._reservable = [reservable_units(node) for node in facts.nodes]
        self._margin = max(1, margin)

    @property
    def now(self) -> int:
        """Microseconds since the full plan (`origin`)."""
        return self.timetable.now

    def advance(self, to: int) -> None:
        self.timetable.now = max(self.now, to)

    def extend_overdue(self) -> bool:
        """Prolongs overdue allocations by the margin. False: that collides with a planned start."""
        while self._ends and self._ends[0][0] < self.now:
            until, reservation_id = heappop(self._ends)
            if any(self._held_on_node[rank][reservation_id][0] == until for rank in self._ranks_of(reservation_id)):
                self._overdue.add(reservation_id)
                if not self._hold_until(reservation_id, self.now + self._margin):
                    return False
        return True

    def unheld_units(self, rank: int) -> int:
        return self._reservable[rank] - self._used[rank]

    def fits_without(self, slot: TimeSlot, rank: int, units: int, duration: int) -> bool:
        """Whether a request with this slot would fit on the node from now on, if it gave up the slot."""
        line, now = self.timetable.timelines[rank], self.now
        if self.unheld_units(rank) < units:
            return False
        opened, closes = max(now, slot.start), slot.start + duration
        before = now >= opened or line.min_free(now, min(opened, now + duration)) >= units
        beyond = now + duration <= closes or line.min_free(max(now, closes), now + duration) >= units
        within = opened >= now + duration or line.min_free(opened, min(closes, now + duration)) >= 0
        return before and beyond and within

    def add_allocation(self, allocation: Allocation, taken_until: int) -> None:
        """From now on. `taken_until`: up to here the timetable has its units already; the rest must be free."""
        assert allocation.until is not None
        self.allocations[allocation.reservation_id] = allocation
        until = to_microseconds(allocation.until - self.origin)
        for share in allocation.shares:
            rank = self._ranks[share.node]
            self._held_on_node[rank][allocation.reservation_id] = (until, share.units)
            self._used[rank] += share.units
            if until > taken_until:
                self.timetable.take(TimeSlot(taken_until, (rank,)), share.units, until - taken_until)
        heappush(self._ends, (until, allocation.reservation_id))

    def remove_allocation(self, reservation_id: ReservationId) -> Iterator[int]:
        """The nodes with more free units now."""
        ranks = self._ranks_of(reservation_id)
        self.allocations.pop(reservation_id, None)
        for rank in ranks:
            until, units = self._held_on_node[rank].pop(reservation_id)
            self._used[rank] -= units
            if until > self.now:
                self.timetable.take(TimeSlot(self.now, (rank,)), -units, until - self.now)
            yield rank

    def move_end(self, allocation: Allocation) -> bool:
        """Applies a new planned end. False: it collides with a planned start."""
        until = 0 if allocation.until is None else to_microseconds(allocation.until - self.origin)
        if until <= self.now:  # it is being torn down
            until = self.now + self._margin
        if not self._hold_until(allocation.reservation_id, until):
            return False
        self.allocations[allocation.reservation_id] = allocation
        return True

    def free_slot(self, slot: TimeSlot, units: int, duration: int) -> None:
        start, end = max(slot.start, self.now), slot.start + duration
        if start < end:
            self.timetable.take(TimeSlot(start, slot.ranks), -units, end - start)

    def choose_gpus(self, request: Request, rank: int) -> tuple[int, ...]:
        """The lowest free GPU indices; empty for a CPU slot."""
        if request.slots:
            return ()
        node = self.nodes[rank]
        taken = set(node.foreign_indices)
        for reservation_id in self._held_on_node[rank]:
            for share in self.allocations[reservation_id].shares:
                if share.node == node.name:
                    taken.update(share.gpu_indices)
        free = [index for index in range(node.units) if index not in taken]
        return tuple(free[: request.units_per_node])

    def free_now(self, ranks: frozenset[int] | None = None) -> tuple[int, dict[int, int]]:
        """The most free units on one node, and the number of free whole nodes by size. `ranks`: only these."""
        most, whole = 0, dict[int, int]()
        lines = self.timetable.timelines
        for line in lines if ranks is None else [lines[rank] for rank in ranks]:
            free = line.free_at(self.now)
            most = max(most, free)
            if free == line.units:
                whole[free] = whole.get(free, 0) + 1
        return most, whole

    def find_blocker(self, rank: int, moment: int) -> BlockingReservation | None:
        ending = [reservation_id for reservation_id, (until, _) in self._held_on_node[rank].items() if until == moment]
        return BlockingReservation(min(ending), overdue=min(ending) in self._overdue) if ending else None

    def _hold_until(self, reservation_id: ReservationId, until: int) -> bool:
        ranks = self._ranks_of(reservation_id)
        for rank in ranks:
            before, units = self._held_on_node[rank][reservation_id]
            longer = TimeSlot(max(before, self.now), (rank,))
            if until > longer.start and not self.timetable.is_free(longer, units, until - longer.start):
                return False
        for rank in ranks:
            before, units = self._held_on_node[rank][reservation_id]
            before = max(before, self.now)
            if until > before:
                self.timetable.take(TimeSlot(before, (rank,)), units, until - before)
            elif until < before:
                self.timetable.take(TimeSlot(until, (rank,)), -units, before - until)
            self._held_on_node[rank][reservation_id] = (until, units)
        heappush(self._ends, (until, reservation_id))
        return True

    def _ranks_of(self, reservation_id: ReservationId) -> list[int]:
        allocation = self.allocations.get(reservation_id)
        shares = allocation.shares if allocation is not None else ()
        ranks = {self._ranks[share.node] for share in shares if share.node in self._ranks}
        return sorted(rank for rank in ranks if reservation_id in self._held_on_node[rank])
