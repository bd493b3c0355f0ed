"""Measurements of a run: waits, GPU utilisation, idle GPUs while a fitting request waited, accuracy of estimates.

They are watchers: they observe a run and change nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.simulation.baseline_policies import fit
from bench.simulation.simulator import Held, Policy, State, predict_start
from bench.simulation.traces import Job


@dataclass(slots=True)
class Waits:
    """Waits by job in seconds, GPU utilisation, and the time in which GPUs were idle while a fitting request waited."""

    waited: dict[int, int] = field(default_factory=dict)
    used_gpu_seconds: int = 0
    idle_seconds: int = 0
    most_waiting: int = 0

    def started(self, state: State, job: Job) -> None:
        self.waited[job.number] = state.now - job.arrives

    def left(self, state: State, held: Held) -> None:
        self.used_gpu_seconds += (state.now - held.since) * held.job.gpus

    def decided(self, state: State, arrived: Sequence[Job], until: int) -> None:
        self.most_waiting = max(self.most_waiting, len(state.queue))
        if any_fits(state):
            self.idle_seconds += until - state.now


def any_fits(state: State) -> bool:
    shapes = {(job.units, job.nodes): job for job in state.queue.values()}
    return any(fit(state.free, job, state.cluster.units) is not None for job in shapes.values())


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimate at submit and the actual wait, in seconds."""

    job: Job
    latest: float
    expected: float
    earliest: float
    latest_likely: float
    waited: int = 0


@dataclass(slots=True)
class Estimates:
    """For the baselines: the estimate that such a scheduler would print, by its own rules and the planned ends. Made
    for every `every`-th queued request, because each is a separate simulation."""

    policy: Policy
    every: int = 1
    estimates: list[Estimate] = field(default_factory=list)
    _stated: dict[int, int] = field(default_factory=dict)
    _queued_count: int = 0

    def started(self, state: State, job: Job) -> None:
        stated = self._stated.pop(job.number, None)
        if stated is not None:
            self.estimates.append(Estimate(job, stated, stated, stated, stated, state.now - job.arrives))

    def left(self, state: State, held: Held) -> None: ...

    def decided(self, state: State, arrived: Sequence[Job], until: int) -> None:
        for job in arrived:
            self._queued_count += 1
            if self._queued_count % self.every == 0:
                self._stated[job.number] = predict_start(self.policy, state, job) - state.now
