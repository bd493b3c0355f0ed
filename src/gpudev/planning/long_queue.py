"""A long queue from turn to turn: what happens is answered at once by the plan that is kept alive; everybody's place
is told anew only now and then, as often as that takes no more than a small share of the time."""

import time
from collections.abc import Callable
from datetime import datetime, timedelta

from gpudev.planning.queue.estimate_updates import QueueMemory, Teller
from gpudev.planning.queue.forecasting import Experience
from gpudev.planning.queue.incremental_planner import LivePlan
from gpudev.planning.queue.plan import Start, Wait
from gpudev.planning.queue.queue_cycle import Forecasting, QueueTurn, tell_everybody
from gpudev.planning.queue.queue_input import Scene

LONG = 500
"""From how many on a queue is long. A full turn of so many takes tens of milliseconds."""
_LEAST_PAUSE = timedelta(seconds=5)
_SHARE_OF_TIME = 20
"""Telling everybody takes at most a twentieth of the time."""


class LongQueue:
    def __init__(self, cost: Callable[[], float] = time.perf_counter) -> None:
        """`cost`: measures what a full turn took, in seconds."""
        self._cost = cost
        self._live: LivePlan | None = None
        self._forecast: Forecasting | None = None
        self._tell_at: datetime | None = None
        self._is_changed = False

    def turn(self, scene: Scene, memory: QueueMemory, experience: Experience) -> QueueTurn:
        began = self._cost()
        starts, newcomers, is_fresh = self._follow(scene, memory)
        self._is_changed = self._is_changed or bool(starts or newcomers)
        is_time = self._tell_at is None or scene.now >= self._tell_at
        if not is_fresh and not (self._is_changed and is_time):
            return self._tell_some(scene, starts, newcomers, memory)
        turn = self._tell_all(scene, starts, memory, experience, is_fresh=is_fresh)
        self._tell_at = scene.now + max(_LEAST_PAUSE, timedelta(seconds=_SHARE_OF_TIME * (self._cost() - began)))
        self._is_changed = False
        return turn

    def _follow(self, scene: Scene, memory: QueueMemory) -> tuple[list[Start], list[Wait], bool]:
        """Who starts because of what happened since, whose place is new, and whether everybody's may be: then all
        were planned anew just now."""
        margin = scene.timing.teardown_margin
        if self._live is None or scene.is_fair_share:
            promises = None if scene.is_fair_share else memory.promises
            self._live = LivePlan(
                scene.gpu_type,
                scene.nodes,
                scene.holdings,
                scene.requests,
                now=scene.now,
                margin=margin,
                promises=promises,
            )
            return list(self._live.wake(scene.now)), [], True
        turn = self._live.turn(scene.nodes, scene.holdings, scene.requests, scene.now)
        return list(turn.starts), [] if turn.remade else list(turn.waits), turn.remade

    def _tell_all(
        self, scene: Scene, starts: list[Start], memory: QueueMemory, experience: Experience, *, is_fresh: bool
    ) -> QueueTurn:
        assert self._live is not None
        if not is_fresh:
            self._live.replan(scene.now)
            starts += self._live.wake(scene.now)
        answers: list[Start | Wait] = [*starts, *self._live.waits()]
        turn, self._forecast = tell_everybody(scene, answers, memory.only(scene.waiting), experience)
        turn.decisions.look_again(self._live.next_at)
        return turn

    def _tell_some(self, scene: Scene, starts: list[Start], newcomers: list[Wait], memory: QueueMemory) -> QueueTurn:
        assert self._live is not None
        assert self._forecast is not None
        teller = Teller(scene, memory)
        for start in starts:
            teller.start(start)
        requests = {request.reservation_id: request for request in scene.requests} if newcomers else {}
        for wait in newcomers:
            own, forecast = requests[wait.reservation_id], None
            if wait.starts_at is not None:
                forecast = self._forecast.get().of_newcomer(
                    own.units_per_node, own.node_count, own.duration, wait.starts_at
                )
            teller.wait(wait, forecast)
        teller.decisions.look_again(self._tell_at if self._is_changed else None)
        teller.decisions.look_again(self._live.next_at)
        return QueueTurn(teller.decisions, None, teller.memory)
