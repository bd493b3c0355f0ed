"""What people were told is kept: when everybody stays to the planned end, nobody starts later than was ever said,
however often the plan is made anew and whoever joins the queue meanwhile."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gpudev.domain.cluster import Allocation, Node
from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import Estimate
from gpudev.planning.queue.plan import Queued, Request
from support.planner import broken_planners as broken
from support.planner.plan_properties import real_planner
from support.planner.reference_planner import Planner, places_now, slots_held, slots_planned
from support.planner.situations import NOW, Situation, ask, h100, held, hours, rid
from support.planner.whole_plan import Plan, plan_queue

Arrivals = Sequence[tuple[float, Request]]
"""After how many hours somebody asks for what."""


Told = dict[ReservationId, Estimate]
Asked = Callable[[Situation, Told], Plan]
"""A planner that may look at what was told last."""


def check_that_what_was_told_is_kept(
    planner: Asked, nodes: Sequence[Node], arrivals: Arrivals, used: Sequence[float] = (1,)
) -> None:
    """Plays the arrivals through; `used`: the part of their time that people stay, in turn."""
    events: list[tuple[datetime, int, ReservationId]] = []
    requests = {}
    for after, request in arrivals:
        requests[request.reservation_id] = request
        heapq.heappush(events, (NOW + hours(after), request.seq, request.reservation_id))
    queue: dict[ReservationId, Request] = {}
    running: dict[ReservationId, Allocation] = {}
    told: Told = {}
    while events:
        now = events[0][0]
        while events and events[0][0] == now:
            _, _, who = heapq.heappop(events)
            if running.pop(who, None) is None:
                queue[who] = requests[who]
        situation = Situation(tuple(nodes), tuple(running.values()), tuple(queue.values()), now)
        plan = planner(situation, told)
        nobody_could_start_beside_everybody(situation, plan)
        for start in plan.starts:
            request = queue.pop(start.reservation_id)
            assert now <= _told_start(told, start.reservation_id, now), "later than told"
            until = now + request.duration
            running[request.reservation_id] = Allocation(request.reservation_id, "h100", start.shares, until)
            leaves = now + request.duration * used[request.seq % len(used)]
            heapq.heappush(events, (leaves, request.seq, request.reservation_id))
        for wait in plan.waits:
            latest = wait.estimate.latest
            assert latest is not None
            assert latest <= _told_start(told, wait.reservation_id, latest), "later than told"
        told = dict(plan.estimates())
    assert not queue, "somebody never started"


def nobody_could_start_beside_everybody(situation: Situation, plan: Plan) -> None:
    """Whoever waits could start now only by taking from what is held or from somebody's place."""
    places = slots_held(situation) + slots_planned(situation, plan)
    waiting = {wait.reservation_id for wait in plan.waits}
    for request in situation.queue:
        if request.reservation_id in waiting:
            others = [slot for slot in places if slot.who != request.reservation_id]
            assert not places_now(situation, others, request), "idle though somebody could start"


def _told_start(told: Told, who: ReservationId, otherwise: datetime) -> datetime:
    wait = told.get(who)
    return otherwise if wait is None or wait.latest is None else wait.latest


def from_the_facts_alone(planner: Planner) -> Asked:
    return lambda situation, _: planner(situation)


def keeping_promises(situation: Situation, told: Told) -> Plan:
    return plan_queue(situation.nodes, situation.holdings, situation.queue, situation.now, promises=told)


@st.composite
def arrivals(draw: st.DrawFn, shapes: Sequence[tuple[int, int]]) -> Arrivals:
    moments = sorted(draw(st.lists(st.sampled_from([0, 0, 1, 1.5, 2, 3, 4.25]), min_size=2, max_size=14)))
    asked = []
    for number, moment in enumerate(moments, 1):
        units, nodes = draw(st.sampled_from(list(shapes)))
        asked.append((moment, ask(number, units, draw(st.sampled_from([0.5, 1, 2, 2.75, 5])), nodes=nodes)))
    return asked


ON_ONE_NODE = arrivals([(1, 1), (1, 1), (2, 1), (4, 1), (8, 1)])
WHOLE_NODES = arrivals([(8, 1), (8, 1), (8, 1), (8, 2), (8, 3)])


@settings(max_examples=80, deadline=None)
@given(ON_ONE_NODE)
def test_on_one_node(asked: Arrivals) -> None:
    check_that_what_was_told_is_kept(from_the_facts_alone(real_planner), [h100("a")], asked)


@settings(max_examples=80, deadline=None)
@given(WHOLE_NODES)
def test_with_whole_nodes_and_gangs(asked: Arrivals) -> None:
    check_that_what_was_told_is_kept(
        from_the_facts_alone(real_planner), [h100("a"), h100("b"), h100("c"), h100("d")], asked
    )


@settings(
    max_examples=1000,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
@given(ON_ONE_NODE)
def _with_a_planner_that_lets_small_ones_pass(asked: Arrivals) -> None:
    check_that_what_was_told_is_kept(from_the_facts_alone(broken.starts_whoever_fits_now), [h100("a")], asked)


def test_a_planner_that_lets_small_ones_pass_is_caught() -> None:
    with pytest.raises(AssertionError, match="later than told"):
        _with_a_planner_that_lets_small_ones_pass()


MIXED = arrivals([(1, 1), (1, 1), (2, 1), (4, 1), (8, 1), (8, 2)])
USED = st.lists(st.sampled_from([0.1, 0.3, 0.5, 0.75, 1]), min_size=1, max_size=7)


@settings(max_examples=200, deadline=None)
@given(MIXED, USED)
def test_with_early_leavers_on_several_nodes(asked: Arrivals, used: Sequence[float]) -> None:
    check_that_what_was_told_is_kept(keeping_promises, [h100("a"), h100("b")], asked, used)


@settings(
    max_examples=3000,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
@given(MIXED, USED)
def _without_being_given_the_promises(asked: Arrivals, used: Sequence[float]) -> None:
    check_that_what_was_told_is_kept(from_the_facts_alone(real_planner), [h100("a"), h100("b")], asked, used)


def test_a_planner_that_is_not_given_the_promises_is_caught() -> None:
    with pytest.raises(AssertionError, match="later than told"):
        _without_being_given_the_promises()


def sits_on_promised_seats(situation: Situation, told: Told) -> Plan:
    """Whoever was promised a later start waits for it, whatever became free meanwhile."""
    plan = keeping_promises(situation, told)
    starts, waits = [], list(plan.waits)
    for start in plan.starts:
        promise = told.get(start.reservation_id)
        if promise is None or promise.latest is None or promise.latest <= situation.now:
            starts.append(start)
        else:
            waits.append(Queued(start.reservation_id, promise))
    return Plan(tuple(starts), tuple(waits))


@settings(
    max_examples=1000,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
@given(MIXED, USED)
def _with_a_planner_that_sits_on_seats(asked: Arrivals, used: Sequence[float]) -> None:
    check_that_what_was_told_is_kept(sits_on_promised_seats, [h100("a"), h100("b")], asked, used)


def test_a_planner_that_lets_gpus_idle_for_the_sake_of_seats_is_caught() -> None:
    with pytest.raises(AssertionError, match="idle though somebody could start"):
        _with_a_planner_that_sits_on_seats()


def test_whoever_gives_up_a_seat_leaves_room_to_those_ahead_at_once() -> None:
    """The second gives up its seat on b for a; only then could the first start on b, and it does. (The very
    first, whom nobody promised anything, and the one with the seat on c are there so that a plan from the facts alone
    would break a promise.)"""
    unpromised, first, second = ask(0, 8, 10), ask(1, 8, 3), ask(2, 8, 1)
    on_a, on_c = ask(3, 8, 9), ask(4, 8, 3)
    told = {
        rid(number): Estimate(1, NOW + hours(after), None, "", (node,))
        for number, after, node in [(1, 5, "b"), (2, 1, "b"), (3, 1, "a"), (4, 1, "c")]
    }
    situation = Situation(
        (h100("a"), h100("b"), h100("c")), (held(91, 1, ("c", range(8))),), (unpromised, first, second, on_a, on_c)
    )
    plan = keeping_promises(situation, told)
    nobody_could_start_beside_everybody(situation, plan)
    assert {start.reservation_id for start in plan.starts} == {rid(1), rid(2)}
    assert plan.estimates()[rid(4)].latest == NOW + hours(1)


class TestPriorities:
    """One node that is full for two hours; two wait for all of it, each for four hours."""

    nodes = (h100("a"),)
    holdings = (held(90, 2, ("a", range(8))),)

    def starts(self, queue: list[Request], promises: Told) -> dict[int, timedelta]:
        plan = plan_queue(self.nodes, self.holdings, queue, NOW, promises=promises)
        return {
            w.reservation_id.int >> 96: latest - NOW for w in plan.waits if (latest := w.estimate.latest) is not None
        }

    def test_a_higher_one_goes_before_what_others_were_promised(self) -> None:
        first, second = ask(1, 8, 4), ask(2, 8, 4)
        told = plan_queue(self.nodes, self.holdings, [first, second], NOW).estimates()
        assert self.starts([first, second], dict(told)) == {1: hours(2), 2: hours(6)}
        urgent = replace(second, priority=1)
        assert self.starts([first, urgent], dict(told)) == {1: hours(6), 2: hours(2)}

    def test_those_of_one_priority_keep_their_promises_among_themselves(self) -> None:
        """The second was promised hour 2 when the first came back to wait behind a later one."""
        first, second, urgent = ask(1, 8, 4), ask(2, 8, 4), ask(3, 8, 1, priority=1)
        told = {second.reservation_id: Estimate(1, NOW + hours(3), None, "", ("a",))}
        assert self.starts([first, second, urgent], told) == {3: hours(2), 2: hours(3), 1: hours(7)}

    def test_a_lower_one_never_moves_anybody(self) -> None:
        first, later = ask(1, 8, 4), ask(2, 8, 1, priority=-1)
        assert self.starts([first, later], {}) == {1: hours(2), 2: hours(6)}
