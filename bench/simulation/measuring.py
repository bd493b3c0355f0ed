"""What a run is judged by: waits, use of the GPUs, idle GPUs that somebody waited for, and what people were told
beside what happened. Watchers: they see a run and change nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.simulation.traces import Job
from bench.simulation.world import Held, Policy, State, foresee
from bench.simulation.yardsticks import fit


@dataclass(slots=True)
class Waits:
    """Seconds by job, the use of GPUs, and the time in which GPUs were idle though somebody waited whom they fit."""

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
    """What somebody was told when they came, as waits in seconds, and how long it really took."""

    job: Job
    latest: float
    expected: float
    earliest: float
    latest_likely: float
    waited: int = 0


@dataclass(slots=True)
class Estimates:
    """For the yardsticks: the one estimate that a scheduler of their kind prints, by its own rules and the planned
    ends. Made for every `every`-th that has to wait, since each is a simulation of its own."""

    policy: Policy
    every: int = 1
    estimates: list[Estimate] = field(default_factory=list)
    _told: dict[int, int] = field(default_factory=dict)
    _seen: int = 0

    def started(self, state: State, job: Job) -> None:
        told = self._told.pop(job.number, None)
        if told is not None:
            self.estimates.append(Estimate(job, told, told, told, told, state.now - job.arrives))

    def left(self, state: State, held: Held) -> None: ...

    def decided(self, state: State, arrived: Sequence[Job], until: int) -> None:
        for job in arrived:
            self._seen += 1
            if self._seen % self.every == 0:
                self._told[job.number] = foresee(self.policy, state, job) - state.now
