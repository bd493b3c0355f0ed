"""A long queue from turn to turn: what happens is answered at once by the plan that is kept alive; everybody's place
is told anew only now and then, as often as that takes no more than a small share of the time."""

import time
from collections.abc import Callable
from datetime import datetime, timedelta

from gpudev.planning.queue.estimate_updates import EstimateUpdater, QueueMemory
from gpudev.planning.queue.forecasting import Experience
from gpudev.planning.queue.incremental_planner import IncrementalPlanner
from gpudev.planning.queue.plan import Queued, Start
from gpudev.planning.queue.queue_cycle import LazyForecast, QueueCycleResult, update_all_estimates
from gpudev.planning.queue.queue_input import QueueInput

LONG_QUEUE = 500
"""From how many on a queue is long. A full turn of so many takes tens of milliseconds."""
_SHORTEST_PAUSE = timedelta(seconds=5)
_SHARE_OF_TIME = 20
"""Telling everybody takes at most a twentieth of the time."""


class LongQueue:
    def __init__(self, cost: Callable[[], float] = time.perf_counter) -> None:
        """`cost`: measures what a full turn took, in seconds."""
        self._cost = cost
        self._planner: IncrementalPlanner | None = None
        self._forecast: LazyForecast | None = None
        self._update_all_at: datetime | None = None
        self._is_changed = False

    def run_cycle(self, queue_input: QueueInput, memory: QueueMemory, experience: Experience) -> QueueCycleResult:
        began = self._cost()
        starts, newcomers, is_fresh = self._update_plan(queue_input, memory)
        self._is_changed = self._is_changed or bool(starts or newcomers)
        is_time = self._update_all_at is None or queue_input.now >= self._update_all_at
        if not is_fresh and not (self._is_changed and is_time):
            return self._update_some(queue_input, starts, newcomers, memory)
        turn = self._update_all(queue_input, starts, memory, experience, is_fresh=is_fresh)
        self._update_all_at = queue_input.now + max(
            _SHORTEST_PAUSE, timedelta(seconds=_SHARE_OF_TIME * (self._cost() - began))
        )
        self._is_changed = False
        return turn

    def _update_plan(self, queue_input: QueueInput, memory: QueueMemory) -> tuple[list[Start], list[Queued], bool]:
        """Who starts because of what happened since, whose place is new, and whether everybody's may be: then all
        were planned anew just now."""
        margin = queue_input.timing.teardown_margin
        if self._planner is None or queue_input.is_fair_share:
            promises = None if queue_input.is_fair_share else memory.promises
            self._planner = IncrementalPlanner(
                queue_input.gpu_type,
                queue_input.nodes,
                queue_input.allocations,
                queue_input.requests,
                now=queue_input.now,
                margin=margin,
                promises=promises,
            )
            return list(self._planner.collect_starts(queue_input.now)), [], True
        turn = self._planner.update(queue_input.nodes, queue_input.allocations, queue_input.requests, queue_input.now)
        return list(turn.starts), [] if turn.remade else list(turn.waits), turn.remade

    def _update_all(
        self,
        queue_input: QueueInput,
        starts: list[Start],
        memory: QueueMemory,
        experience: Experience,
        *,
        is_fresh: bool,
    ) -> QueueCycleResult:
        assert self._planner is not None
        if not is_fresh:
            self._planner.replan(queue_input.now)
            starts += self._planner.collect_starts(queue_input.now)
        answers: list[Start | Queued] = [*starts, *self._planner.iter_queued()]
        turn, self._forecast = update_all_estimates(
            queue_input, answers, memory.only_waiting(queue_input.waiting), experience
        )
        turn.decisions.recheck_at(self._planner.next_at)
        return turn

    def _update_some(
        self, queue_input: QueueInput, starts: list[Start], newcomers: list[Queued], memory: QueueMemory
    ) -> QueueCycleResult:
        assert self._planner is not None
        assert self._forecast is not None
        teller = EstimateUpdater(queue_input, memory)
        for start in starts:
            teller.add_start(start)
        requests = {request.reservation_id: request for request in queue_input.requests} if newcomers else {}
        for wait in newcomers:
            own, forecast = requests[wait.reservation_id], None
            if wait.starts_at is not None:
                forecast = self._forecast.get_forecast().forecast_newcomer(
                    own.units_per_node, own.node_count, own.duration, wait.starts_at
                )
            teller.add_queued(wait, forecast)
        teller.decisions.recheck_at(self._update_all_at if self._is_changed else None)
        teller.decisions.recheck_at(self._planner.next_at)
        return QueueCycleResult(teller.decisions, None, teller.memory)
