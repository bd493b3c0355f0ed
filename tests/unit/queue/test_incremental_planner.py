"""The live plan through whole lives of a queue: each claim holds at every moment, and each catches a live plan that is
broken in just that way."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from gpudev.domain.cluster import Allocation
from gpudev.domain.ids import ReservationId
from gpudev.planning.queue.incremental_planner import IncrementalPlanner
from gpudev.planning.queue.node_timelines import TimeSlot
from gpudev.planning.queue.plan import Queued, Request, Start
from gpudev.planning.queue.zone_constraints import ZoneFilter
from support.planner.queue_histories import (
    LIVES,
    LIVES_BY_TURNS,
    LIVES_WITH_LATECOMERS,
    NODES,
    Happening,
    Life,
    LifeByTurns,
    MakeLive,
)
from support.planner.situations import MARGIN, NOW, Situation, ask, held, hours, rid, situations
from support.planner.whole_plan import end_reservation, wait_of

Check = Callable[[Life], None]
FIND_ONE = settings(
    max_examples=3000,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def live_through(make: MakeLive, happenings: Sequence[Happening], check: Check, kind: type[Life] = Life) -> Life:
    life = kind(make)
    for happening in happenings:
        life.happen(*happening)
        check(life)
    return life


class NumbersGpusFromZero(IncrementalPlanner):
    def _start(self, request: Request, ranks: Sequence[int], taken_until: int) -> Start:
        start = super()._start(request, ranks, taken_until)
        return replace(start, shares=tuple(replace(s, gpu_indices=tuple(range(s.units))) for s in start.shares))


class StartsHalfAGang(IncrementalPlanner):
    def _start(self, request: Request, ranks: Sequence[int], taken_until: int) -> Start:
        return super()._start(request, ranks[:1], taken_until)


class SeatsNewcomersOnSomebodysPlace(IncrementalPlanner):
    """Whoever comes and has to wait is told to be next."""

    def add_request(self, request: Request, now: Any) -> Start | Queued:
        answer = super().add_request(request, now)
        seat = self._planned_starts.unassign(request)
        if seat is None:
            return answer
        self._planned_starts.assign(request, TimeSlot(min(seat.start, self._occupancy.now + 60_000_000), seat.ranks))
        return wait_of(self, request.reservation_id) or answer


class LetsTheLastGoFirst(IncrementalPlanner):
    """Forgets the places of all that wait when somebody new comes."""

    def add_request(self, request: Request, now: Any) -> Start | Queued:
        waiting = list(self._queue)
        self._make_full_plan(self._nodes, list(self._occupancy.allocations.values()), [request], now, {})
        answer = next(iter(self.collect_starts(now)), None) or wait_of(self, request.reservation_id)
        assert answer is not None
        for other in waiting:
            super().add_request(other, now)
        return answer


class NeverLooksForRoom(IncrementalPlanner):
    def _backfill(self) -> Iterator[Start]:
        return iter(())


class LooksForRoomOnce(IncrementalPlanner):
    """Whoever starts leaves a place behind, which it overlooks."""

    def _backfill(self) -> Iterator[Start]:
        yield from list(super()._backfill())[:1]


class LooksForRoomEverywhere(IncrementalPlanner):
    """Forgets where disks are when room appears."""

    def _backfill(self) -> Iterator[Start]:
        self._zone_filter = ZoneFilter([replace(node, zone=None) for node in self._occupancy.nodes])
        return super()._backfill()


class ForgetsWhereNewDisksAre(IncrementalPlanner):
    def add_request(self, request: Request, now: Any) -> Start | Queued:
        return super().add_request(replace(request, zone_constraint=None), now)


class CountsPositionsByStart(IncrementalPlanner):
    def iter_queued(self) -> Iterator[Queued]:
        known = [wait for wait in super().iter_queued() if wait.estimate.latest is not None]
        for position, wait in enumerate(sorted(known, key=lambda w: (w.estimate.latest, w.reservation_id)), 1):
            yield replace(wait, estimate=replace(wait.estimate, position=position))


class BelievesThatEverybodyGoesInTime(IncrementalPlanner):
    def _advance(self, now: Any) -> None:
        for who, holding in list(self._occupancy.allocations.items()):
            if holding.until is not None and holding.until <= now:
                self._touched_ranks.update(self._occupancy.remove_allocation(who))
        super()._advance(now)


CLAIMS: list[tuple[Check, list[MakeLive]]] = [
    (Life.check_gpus, [NumbersGpusFromZero]),
    (Life.check_gangs, [StartsHalfAGang]),
    (Life.check_places, [SeatsNewcomersOnSomebodysPlace]),
    (Life.check_promises, [LetsTheLastGoFirst]),
    (Life.check_idle, [NeverLooksForRoom, LooksForRoomOnce]),
    (Life.check_positions, [CountsPositionsByStart]),
    (Life.check_zones, [LooksForRoomEverywhere, ForgetsWhereNewDisksAre]),
]
CAUGHT = [(check, make) for check, makes in CLAIMS for make in makes]


@pytest.mark.parametrize("check", [check for check, _ in CLAIMS], ids=lambda check: check.__name__)
def test_it_holds_at_every_moment(check: Check) -> None:
    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(LIVES)
    def holds(happenings: list[Happening]) -> None:
        live_through(IncrementalPlanner, happenings, check)

    holds()


@pytest.mark.parametrize(("check", "make"), CAUGHT, ids=[f"{c.__name__}-{m.__name__}" for c, m in CAUGHT])  # type: ignore[attr-defined]
def test_it_catches_a_live_plan_that_is_broken(check: Check, make: MakeLive) -> None:
    @settings(FIND_ONE)
    @given(LIVES)
    def holds(happenings: list[Happening]) -> None:
        live_through(make, happenings, check)

    with pytest.raises(AssertionError):
        holds()


def everything_but_promises(life: Life) -> None:
    life.check_gpus()
    life.check_gangs()
    life.check_idle()
    life.check_positions()
    life.check_zones()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(LIVES_WITH_LATECOMERS)
def test_nothing_is_planned_over_those_who_overstay(happenings: list[Happening]) -> None:
    live_through(IncrementalPlanner, happenings, everything_but_promises)


@settings(FIND_ONE)
@given(LIVES_WITH_LATECOMERS)
def _believing_that_everybody_goes_in_time(happenings: list[Happening]) -> None:
    live_through(BelievesThatEverybodyGoesInTime, happenings, Life.check_gpus)


def test_a_live_plan_that_believes_in_planned_ends_is_caught() -> None:
    with pytest.raises(AssertionError, match="two on one GPU"):
        _believing_that_everybody_goes_in_time()


def everything(life: Life) -> None:
    everything_but_promises(life)
    life.check_places()
    life.check_promises()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(LIVES_BY_TURNS)
def test_it_sees_for_itself_what_changed(happenings: list[Happening]) -> None:
    live_through(IncrementalPlanner, happenings, everything, LifeByTurns)


class OverlooksWhoIsGone(IncrementalPlanner):
    def _remove(self, reservation_id: ReservationId) -> None: ...


@settings(FIND_ONE)
@given(LIVES_BY_TURNS)
def _overlooking_who_is_gone(happenings: list[Happening]) -> None:
    live_through(OverlooksWhoIsGone, happenings, everything, LifeByTurns)


def test_a_live_plan_that_overlooks_who_is_gone_is_caught() -> None:
    with pytest.raises(AssertionError):
        _overlooking_who_is_gone()


class TestTurns:
    def live(self) -> IncrementalPlanner:
        """a and b are full for 2 and 3 hours; 1 and 2 wait for them."""
        live = IncrementalPlanner("h100", NODES[:2], self.held(), [ask(1, 8), ask(2, 8)], now=NOW, margin=MARGIN)
        assert live.collect_starts(NOW) == ()
        return live

    def held(self) -> list[Allocation]:
        return [held(91, 2, ("a", range(8))), held(92, 3, ("b", range(8)))]

    def test_nothing_new_says_nothing(self) -> None:
        turn = self.live().update(NODES[:2], self.held(), [ask(1, 8), ask(2, 8)], NOW)
        assert (turn.starts, turn.waits, turn.remade) == ((), (), False)

    def test_a_lost_node_makes_the_plan_anew(self) -> None:
        live = self.live()
        turn = live.update(NODES[:1], self.held(), [ask(1, 8), ask(2, 8)], NOW)
        assert turn.remade
        assert [wait.estimate.nodes for wait in turn.waits] == [("a",), ("a",)]

    def test_an_end_that_moves_onto_somebodys_place_makes_the_plan_anew(self) -> None:
        longer = [held(91, 5, ("a", range(8))), self.held()[1]]
        turn = self.live().update(NODES[:2], longer, [ask(1, 8), ask(2, 8)], NOW)
        assert turn.remade
        assert [wait.estimate.latest for wait in turn.waits] == [NOW + hours(3), NOW + hours(4)]

    def test_somebody_who_may_go_first_now_makes_the_plan_anew(self) -> None:
        turn = self.live().update(NODES[:2], self.held(), [ask(1, 8), ask(2, 8, priority=1)], NOW)
        assert turn.remade

    def test_a_start_that_did_not_happen_is_planned_again(self) -> None:
        live = self.live()
        (start,) = end_reservation(live, rid(91), NOW)
        assert start.reservation_id == rid(1)
        turn = live.update(NODES[:2], self.held()[1:], [ask(1, 8), ask(2, 8)], NOW)
        assert {start.reservation_id for start in turn.starts} == {rid(2)}

    def test_much_at_once_makes_the_plan_anew(self) -> None:
        many = [ask(number, 1) for number in range(1, 50)]
        assert self.live().update(NODES[:2], self.held(), many, NOW).remade

    def test_it_says_when_to_be_woken(self) -> None:
        live = self.live()
        assert live.next_at == NOW + hours(2)
        assert wait_of(live, rid(2)) is not None
        assert wait_of(live, rid(91)) is None

    def test_a_size_nobody_asked_for_before(self) -> None:
        answer = self.live().add_request(ask(3, 2, 1), NOW)
        assert isinstance(answer, Queued)
        assert (answer.estimate.latest, answer.estimate.position) == (NOW + hours(3), 3)

    def test_those_who_can_never_run_are_told_so(self) -> None:
        answer = self.live().add_request(ask(3, 8, 1, nodes=3), NOW)
        assert isinstance(answer, Queued)
        assert answer.estimate.latest is None
        assert "only 2 h100 can be" in answer.estimate.reason


def made_of(situation: Situation, make: MakeLive = IncrementalPlanner) -> tuple[tuple[Start, ...], list[Queued]]:
    h100s = [node for node in situation.nodes if node.gpu_type == "h100"]
    queue = [request for request in situation.queue if request.gpu_type == "h100"]
    live = make("h100", h100s, situation.holdings, queue, now=situation.now, margin=situation.margin)
    return live.collect_starts(situation.now), list(live.iter_queued())


def shuffled(situation: Situation) -> Situation:
    shuffle = random.Random(7).sample
    return replace(
        situation,
        nodes=tuple(shuffle(situation.nodes, len(situation.nodes))),
        holdings=tuple(shuffle(situation.holdings, len(situation.holdings))),
        queue=tuple(shuffle(situation.queue, len(situation.queue))),
    )


@settings(max_examples=150, deadline=None)
@given(situations())
def test_the_same_facts_give_the_same_plan(situation: Situation) -> None:
    assert made_of(shuffled(situation)) == made_of(situation)


def in_order_of_mention(
    gpu_type: str, nodes: Any, holdings: Any, queue: list[Request], **rest: Any
) -> IncrementalPlanner:
    return IncrementalPlanner(gpu_type, nodes, holdings, [replace(r, seq=at) for at, r in enumerate(queue)], **rest)


@settings(FIND_ONE)
@given(situations())
def _in_order_of_mention(situation: Situation) -> None:
    assert made_of(shuffled(situation), in_order_of_mention) == made_of(situation, in_order_of_mention)


def test_a_live_plan_that_depends_on_the_order_of_mention_is_caught() -> None:
    with pytest.raises(AssertionError):
        _in_order_of_mention()
