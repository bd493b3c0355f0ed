"""The room of one GPU type as time moves on: what is really held now, beside what the timetable says of the future.

Keeps the two in step: whoever starts takes, whoever leaves gives back, and what should be free by now and is not is
noticed. It refuses to know the queue.
"""

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

from gpudev.domain.cluster import Holding
from gpudev.domain.ids import ReservationId
from gpudev.planning.facts import TypeFacts, lasting_units, microseconds
from gpudev.planning.queue.node_timelines import Place, Timetable
from gpudev.planning.queue.plan import Request
from gpudev.planning.queue.wait_reasons import Ending


class Room:
    def __init__(self, facts: TypeFacts, timetable: Timetable, holdings: Sequence[Holding], margin: int) -> None:
        self.origin = facts.now
        self.nodes = facts.nodes
        self.timetable = timetable
        self.held = {holding.reservation_id: holding for holding in holdings}
        self._ranks = {node.name: rank for rank, node in enumerate(facts.nodes)}
        self._held_at: list[dict[ReservationId, tuple[int, int]]] = [{} for _ in facts.nodes]
        """By rank: until when, and how many units."""
        for rank, there in enumerate(facts.held):
            for held in there:
                _, units = self._held_at[rank].get(held.reservation_id, (0, 0))
                self._held_at[rank][held.reservation_id] = (held.until, units + held.units)
        self._overdue = {held.reservation_id for there in facts.held for held in there if held.overdue}
        self._used = [sum(held.units for held in there) for there in facts.held]
        self._ends = [(held.until, held.reservation_id) for there in facts.held for held in there]
        heapify(self._ends)
        self._lasting = [lasting_units(node) for node in facts.nodes]
        self._margin = max(1, margin)

    @property
    def now(self) -> int:
        """Microseconds since the full plan was made, whose moment is `origin`."""
        return self.timetable.now

    def advance(self, to: int) -> None:
        self.timetable.now = max(self.now, to)

    def keep_the_overdue(self) -> bool:
        """What should be free by now and is not will take a while. False: somebody else has a place there."""
        while self._ends and self._ends[0][0] < self.now:
            until, who = heappop(self._ends)
            if any(self._held_at[rank][who][0] == until for rank in self._ranks_of(who)):
                self._overdue.add(who)
                if not self._keep_until(who, self.now + self._margin):
                    return False
        return True

    def really_free(self, rank: int) -> int:
        return self._lasting[rank] - self._used[rank]

    def fits_but_for(self, seat: Place, rank: int, units: int, duration: int) -> bool:
        """Whether there is room on that node from now on for whoever has that seat on it, if it gave the seat up."""
        line, now = self.timetable.lines[rank], self.now
        if self.really_free(rank) < units:
            return False
        opened, closes = max(now, seat.start), seat.start + duration
        before = now >= opened or line.least_free(now, min(opened, now + duration)) >= units
        beyond = now + duration <= closes or line.least_free(max(now, closes), now + duration) >= units
        within = opened >= now + duration or line.least_free(opened, min(closes, now + duration)) >= 0
        return before and beyond and within

    def hold(self, holding: Holding, taken_until: int) -> None:
        """From now on. `taken_until`: how far the timetable has its units already; the rest must be free."""
        assert holding.until is not None
        self.held[holding.reservation_id] = holding
        until = microseconds(holding.until - self.origin)
        for share in holding.shares:
            rank = self._ranks[share.node]
            self._held_at[rank][holding.reservation_id] = (until, share.units)
            self._used[rank] += share.units
            if until > taken_until:
                self.timetable.take(Place(taken_until, (rank,)), share.units, until - taken_until)
        heappush(self._ends, (until, holding.reservation_id))

    def release(self, reservation_id: ReservationId) -> Iterator[int]:
        """The nodes on which there is more room now."""
        ranks = self._ranks_of(reservation_id)
        self.held.pop(reservation_id, None)
        for rank in ranks:
            until, units = self._held_at[rank].pop(reservation_id)
            self._used[rank] -= units
            if until > self.now:
                self.timetable.take(Place(self.now, (rank,)), -units, until - self.now)
            yield rank

    def move_end(self, holding: Holding) -> bool:
        """Somebody stays longer or less long than was known. False: longer, where somebody has a place."""
        until = 0 if holding.until is None else microseconds(holding.until - self.origin)
        if until <= self.now:  # it is being cleared away
            until = self.now + self._margin
        if not self._keep_until(holding.reservation_id, until):
            return False
        self.held[holding.reservation_id] = holding
        return True

    def give_back(self, seat: Place, units: int, duration: int) -> None:
        start, end = max(seat.start, self.now), seat.start + duration
        if start < end:
            self.timetable.take(Place(start, seat.ranks), -units, end - start)

    def choose(self, request: Request, rank: int) -> tuple[int, ...]:
        """The lowest GPUs that are free; none for a slot."""
        if request.slots:
            return ()
        node = self.nodes[rank]
        taken = set(node.foreign_indices)
        for who in self._held_at[rank]:
            for share in self.held[who].shares:
                if share.node == node.name:
                    taken.update(share.gpu_indices)
        free = [index for index in range(node.units) if index not in taken]
        return tuple(free[: request.units_per_node])

    def free_now(self, ranks: frozenset[int] | None = None) -> tuple[int, dict[int, int]]:
        """The most units on one node, and how many nodes of so many units are free altogether. `ranks`: of these."""
        most, whole = 0, dict[int, int]()
        lines = self.timetable.lines
        for line in lines if ranks is None else [lines[rank] for rank in ranks]:
            free = line.free_at(self.now)
            most = max(most, free)
            if free == line.units:
                whole[free] = whole.get(free, 0) + 1
        return most, whole

    def ending_at(self, rank: int, moment: int) -> Ending | None:
        ending = [who for who, (until, _) in self._held_at[rank].items() if until == moment]
        return Ending(min(ending), overdue=min(ending) in self._overdue) if ending else None

    def _keep_until(self, reservation_id: ReservationId, until: int) -> bool:
        ranks = self._ranks_of(reservation_id)
        for rank in ranks:
            before, units = self._held_at[rank][reservation_id]
            longer = Place(max(before, self.now), (rank,))
            if until > longer.start and not self.timetable.is_free(longer, units, until - longer.start):
                return False
        for rank in ranks:
            before, units = self._held_at[rank][reservation_id]
            before = max(before, self.now)
            if until > before:
                self.timetable.take(Place(before, (rank,)), units, until - before)
            elif until < before:
                self.timetable.take(Place(until, (rank,)), -units, before - until)
            self._held_at[rank][reservation_id] = (until, units)
        heappush(self._ends, (until, reservation_id))
        return True

    def _ranks_of(self, reservation_id: ReservationId) -> list[int]:
        holding = self.held.get(reservation_id)
        shares = holding.shares if holding is not None else ()
        ranks = {self._ranks[share.node] for share in shares if share.node in self._ranks}
        return sorted(rank for rank in ranks if reservation_id in self._held_at[rank])
