"""`planner`: how long the planner thinks, on one core, with 10,000 waiting on 1,000 nodes while 5,000 run.

Each figure is the best of several runs: a busy machine slows a run down and never speeds one up.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from uuid import UUID

from bench.figures import report
from bench.simulation.busy import NOW, Moment, busy_moment
from gpudev.domain.capacity import Holding
from gpudev.domain.ids import ReservationId
from gpudev.planning.estimate import estimate
from gpudev.planning.forecasting import forecast
from gpudev.planning.plan import Plan
from gpudev.planning.queueing import plan_queue, plan_starts

_NODES, _RUNNING, _QUEUED = 1_000, 5_000, 10_000
_ROUNDS = 5
_STEPS = (1, 2, 4, 8)
_NEAR_LINEAR = 1.3
"""Eight times as much may take at most this many times eight times as long."""


def run() -> None:
    full = busy_moment(nodes=_NODES, running=_RUNNING, queued=_QUEUED)
    first = _plan(full)
    told = first.wait_of()
    latest = {who: wait.starts_at for who, wait in told.items()}
    settled = _after(full, first)
    newcomer = replace(full.queue[-1], reservation_id=ReservationId(UUID(int=_QUEUED)), seq=_QUEUED)
    ended = replace(settled, holdings=settled.holdings[1:])
    _report("who starts now", _best(lambda: _starts(full)), 100)
    _report("the full plan", _best(lambda: _plan(full)), 1000)
    _report("the full plan with everybody's forecast", _best(lambda: _plan_and_forecast(full, latest)), 1000)
    _report(
        "the full plan made again, all promises kept",
        _best(lambda: plan_queue(settled.nodes, settled.holdings, settled.queue, NOW, promises=told)),
        1000,
    )
    _report(
        "one arrival, what it is told (estimate: planned from scratch, nothing is incremental)",
        _best(lambda: estimate(settled.nodes, settled.holdings, settled.queue, newcomer, NOW)),
        20,
    )
    _report("one end, who starts then (plan_starts: from scratch too)", _best(lambda: _starts(ended)), 20)
    some = _QUEUED // 8
    _report_growth("queued", lambda k: busy_moment(nodes=_NODES, running=_RUNNING, queued=some * k))
    _report_growth("nodes", lambda k: busy_moment(nodes=_NODES * k // 8, running=_RUNNING // 8, queued=some))
    _report_growth("running", lambda k: busy_moment(nodes=_NODES, running=_RUNNING * k // 8, queued=some))
    _report_growth(
        "everything", lambda k: busy_moment(nodes=_NODES * k // 8, running=_RUNNING * k // 8, queued=some * k)
    )


def _after(moment: Moment, plan: Plan) -> Moment:
    """The same moment when those have started who could."""
    requests = {request.reservation_id: request for request in moment.queue}
    started = [
        Holding(start.reservation_id, "h100", start.shares, NOW + requests.pop(start.reservation_id).duration)
        for start in plan.starts
    ]
    return replace(moment, holdings=[*moment.holdings, *started], queue=list(requests.values()))


def _starts(moment: Moment) -> object:
    return plan_starts(moment.nodes, moment.holdings, moment.queue, NOW)


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


def _report_growth(dimension: str, make: Callable[[int], Moment]) -> None:
    """One dimension grows from an eighth to the whole, the others stay as they are."""
    times = {}
    for step in _STEPS:
        moment = make(step)
        times[step] = _best(partial(_plan, moment))
        _report(f"the full plan, {step}x {dimension}", times[step], None)
    most = times[_STEPS[-1]] / times[1] / _STEPS[-1]
    report("planner", f"growth with {dimension}: time for 8x / (8 times the time for 1x)", most, "x", _NEAR_LINEAR)


def _best(what: Callable[[], object]) -> float:
    """Milliseconds."""
    best = float("inf")
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        what()
        best = min(best, time.perf_counter() - started)
    return best * 1000


def _report(metric: str, milliseconds: float, goal: float | None) -> None:
    report("planner", metric, milliseconds, "ms", goal)
