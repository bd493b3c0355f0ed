"""`planner`: the planner's CPU time on one core, with 10,000 queued and 5,000 running reservations on 1,000 nodes.

CPU time, so that other load on the machine matters little; each figure is the best of several runs, because load can
only slow a run down. For single events (one arrival, one release) the goal also applies to the slowest of many
different events, each being the best of several runs of the same event.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from bench.figures import report
from bench.simulation.busy_cluster import NOW, Moment, busy_moment
from gpudev.domain.cluster import Allocation, ZoneConstraint
from gpudev.domain.ids import ReservationId
from gpudev.planning.queue.incremental_planner import IncrementalPlanner
from gpudev.planning.queue.plan import Request
from support.planner.whole_plan import Plan, end_reservation, forecast, plan_queue

_NODES, _RUNNING, _QUEUED = 1_000, 5_000, 10_000
_ROUNDS = 5
_EVENTS = 40
_STEPS = (1, 2, 4, 8)
_NEAR_LINEAR = 1.3
"""Eight times the size may take at most eight times this factor as long."""


def run() -> None:
    full = busy_moment(nodes=_NODES, running=_RUNNING, queued=_QUEUED)
    first = _plan(full)
    estimates = first.estimates()
    latest = {reservation_id: wait.latest for reservation_id, wait in estimates.items()}
    settled, zoned = _after(full, first), _in_zones(full)
    _report("the full plan", _best(lambda: _plan(full)), 1000)
    _report("the full plan, everybody with a disk in one of three zones", _best(lambda: _plan(zoned)), 1000)
    _report("the full plan with everybody's forecast", _best(lambda: _plan_and_forecast(full, latest)), 1000)
    _report(
        "the full plan made again, all promises kept",
        _best(lambda: plan_queue(settled.nodes, settled.holdings, settled.queue, NOW, promises=estimates)),
        1000,
    )
    _report_live(settled)
    some = _QUEUED // 8
    _report_growth("queued", lambda k: busy_moment(nodes=_NODES, running=_RUNNING, queued=some * k))
    _report_growth("nodes", lambda k: busy_moment(nodes=_NODES * k // 8, running=_RUNNING // 8, queued=some))
    _report_growth("running", lambda k: busy_moment(nodes=_NODES, running=_RUNNING * k // 8, queued=some))
    _report_growth(
        "everything",
        lambda k: busy_moment(nodes=_NODES * k // 8, running=_RUNNING * k // 8, queued=some * k),
        goal=None,  # all three dimensions at once
    )


def _in_zones(moment: Moment) -> Moment:
    """Every second disk can be moved."""
    nodes = [replace(node, zone=f"zone-{at % 3}") for at, node in enumerate(moment.nodes)]
    moves = (None, timedelta(seconds=30))
    queue = [
        replace(request, zone_constraint=ZoneConstraint("data", frozenset({f"zone-{at % 3}"}), moves[at % 2]))
        for at, request in enumerate(moment.queue)
    ]
    return replace(moment, nodes=nodes, queue=queue)


def _report_live(moment: Moment) -> None:
    """The incremental planner: every event is applied to the plan after the previous events."""
    arrivals, ends, turns = [], [], []
    for _ in range(_ROUNDS):
        live = IncrementalPlanner("h100", moment.nodes, moment.holdings, moment.queue, now=NOW)
        live.collect_starts(NOW)
        arrivals.append([_time(partial(live.add_request, *event)) for event in _arrivals(moment)])
        ends.append([_time(partial(end_reservation, live, *event)) for event in _ends(moment)])
        turns.append(_time_turn(moment))
    for what, rounds in (("arrival, what it is told", arrivals), ("end, who starts then", ends)):
        times = [min(same) for same in zip(*rounds, strict=True)]
        _report(f"one {what}, mean of {_EVENTS}", sum(times) / len(times), 20)
        _report(f"one {what}, the slowest of {_EVENTS}", max(times), 20)
    _report("one end, found among everything that is true now (nothing else is known)", min(turns), None)
    _report("everybody's position, start and reason in words", _best(lambda: list(live.iter_queued())), None)
    _report("the live plan made anew, all promises kept", _best(lambda: live.replan(_later(3 * _EVENTS))), 1000)


def _arrivals(moment: Moment) -> Sequence[tuple[Request, datetime]]:
    """One second apart, in all shapes."""
    return [
        (replace(moment.queue[17 * n], reservation_id=ReservationId(UUID(int=_QUEUED + n)), seq=_QUEUED + n), _later(n))
        for n in range(_EVENTS)
    ]


def _ends(moment: Moment) -> Sequence[tuple[ReservationId, datetime]]:
    return [(moment.holdings[100 * n].reservation_id, _later(_EVENTS + n)) for n in range(_EVENTS)]


def _time_turn(moment: Moment) -> float:
    live = IncrementalPlanner("h100", moment.nodes, moment.holdings, moment.queue, now=NOW)
    live.collect_starts(NOW)
    return _time(lambda: live.update(moment.nodes, moment.holdings[1:], moment.queue, NOW))


def _later(seconds: int) -> datetime:
    return NOW + timedelta(seconds=seconds)


def _after(moment: Moment, plan: Plan) -> Moment:
    """The same moment after all possible starts."""
    requests = {request.reservation_id: request for request in moment.queue}
    started = [
        Allocation(start.reservation_id, "h100", start.shares, NOW + requests.pop(start.reservation_id).duration)
        for start in plan.starts
    ]
    return replace(moment, holdings=[*moment.holdings, *started], queue=list(requests.values()))


def _plan(moment: Moment) -> Plan:
    return plan_queue(moment.nodes, moment.holdings, moment.queue, NOW)


def _plan_and_forecast(moment: Moment, latest: dict[ReservationId, datetime | None]) -> None:
    _plan(moment)
    forecast(
        moment.nodes,
        moment.holdings,
        moment.queue,
        NOW,
        began=moment.began,
        latest=latest,
        came={},
        experience={},
    )


def _report_growth(dimension: str, make: Callable[[int], Moment], goal: float | None = _NEAR_LINEAR) -> None:
    """One dimension grows from an eighth to the full size; the others stay constant."""
    times = {}
    for step in _STEPS:
        moment = make(step)
        times[step] = _best(partial(_plan, moment))
        _report(f"the full plan, {step}x {dimension}", times[step], None)
    most = times[_STEPS[-1]] / times[1] / _STEPS[-1]
    report("planner", f"growth with {dimension}: time for 8x / (8 times the time for 1x)", most, "x", goal)


def _best(what: Callable[[], object]) -> float:
    return min(_time(what) for _ in range(_ROUNDS))


def _time(what: Callable[[], object]) -> float:
    """Milliseconds of CPU time."""
    started = time.process_time()
    what()
    return (time.process_time() - started) * 1000


def _report(metric: str, milliseconds: float, goal: float | None) -> None:
    report("planner", metric, milliseconds, "ms", goal)
