"""Nobody who could ever run waits for ever: four whole nodes are asked for in the middle of a stream of small requests
that never ends on its own, and are had by the time that was told."""

import random
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from heapq import heappop, heappush
from typing import Protocol

import pytest

from gpudev.domain.cluster import Allocation
from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import Estimate
from gpudev.planning.queue.incremental_planner import IncrementalPlanner
from gpudev.planning.queue.plan import Queued, Request, Start
from support.planner.broken_planners import starts_whoever_fits_now
from support.planner.situations import MARGIN, NOW, Situation, ask, h100, hours, rid
from support.planner.whole_plan import Plan, plan_queue

NODES = (h100("a"), h100("b"), h100("c"), h100("d"))
GANG = rid(500)
COMES, STREAM_ENDS = NOW + hours(4), NOW + hours(40)


class Decider(Protocol):
    def __call__(self, situation: Situation) -> tuple[Iterable[Start], Iterable[Queued]]: ...


def keeping_promises() -> Decider:
    told: dict[ReservationId, Estimate] = {}

    def decide(situation: Situation) -> tuple[Iterable[Start], Iterable[Queued]]:
        plan = plan_queue(situation.nodes, situation.holdings, situation.queue, situation.now, promises=told)
        told.clear()
        told.update(plan.estimates())
        return plan.starts, plan.waits

    return decide


def live() -> Decider:
    plan = IncrementalPlanner("h100", NODES, [], [], now=NOW, margin=MARGIN)

    def decide(situation: Situation) -> tuple[Iterable[Start], Iterable[Queued]]:
        turn = plan.update(situation.nodes, situation.holdings, situation.queue, situation.now)
        return turn.starts, list(plan.iter_queued())

    return decide


def without_promises(planner: Callable[[Situation], Plan]) -> Callable[[], Decider]:
    def decide(situation: Situation) -> tuple[Iterable[Start], Iterable[Queued]]:
        plan = planner(situation)
        return plan.starts, plan.waits

    return lambda: decide


def stream(seed: int) -> dict[ReservationId, tuple[datetime, Request]]:
    """Every few minutes somebody asks for one or two GPUs: more than there are."""
    dice = random.Random(seed)
    coming, now, number = {}, NOW, 0
    while now < STREAM_ENDS:
        number += 1
        if number != 500:
            coming[rid(number)] = (now, ask(number, dice.choice([1, 1, 2]), dice.choice([1, 2, 3, 4])))
        now += timedelta(minutes=dice.choice([2, 5, 8]))
    return coming | {GANG: (COMES, ask(500, 8, 2, nodes=4))}


def start_of_the_gang(decide: Decider, seed: int) -> tuple[datetime, datetime]:
    """When it was told to start when it came, and when it did. Of the others every second leaves early."""
    requests = stream(seed)
    events = [(at, who) for who, (at, _) in requests.items()]
    events.sort()
    queue: dict[ReservationId, Request] = {}
    running: dict[ReservationId, Allocation] = {}
    told: datetime | None = None
    while events:
        now = events[0][0]
        while events and events[0][0] == now:
            _, who = heappop(events)
            if running.pop(who, None) is None:
                queue[who] = requests[who][1]
        starts, waits = decide(Situation(NODES, tuple(running.values()), tuple(queue.values()), now))
        for start in starts:
            request = queue.pop(start.reservation_id)
            if request.reservation_id == GANG:
                assert told is not None, "it had to wait, or nothing is shown"
                return told, now
            running[request.reservation_id] = Allocation(
                request.reservation_id, "h100", start.shares, now + request.duration
            )
            heappush(events, (now + request.duration / (1 + request.seq % 2), request.reservation_id))
        if told is None:
            told = next((wait.estimate.latest for wait in waits if wait.reservation_id == GANG), None)
    raise AssertionError("it never started")


@pytest.mark.parametrize("make", [keeping_promises, live])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_gang_starts_by_the_time_it_was_told_though_small_ones_keep_coming(
    make: Callable[[], Decider], seed: int
) -> None:
    told, started = start_of_the_gang(make(), seed)
    assert started <= told < STREAM_ENDS - hours(12)


@pytest.mark.slow
def test_a_planner_that_lets_small_ones_pass_lets_it_starve() -> None:
    """Which shows that the stream would never have left four nodes free by itself."""
    told, started = start_of_the_gang(without_promises(starts_whoever_fits_now)(), 1)
    assert started > max(told, STREAM_ENDS)
