"""Virtual time: requests arrive, a policy starts some, and running jobs end.

It tracks allocations, queue and free GPUs, and verifies every start of a policy: one that does not fit is an error. It
does not know why a job was started, and never reveals to a policy how long a job will really run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Protocol

from bench.simulation.traces import Cluster, Job


@dataclass(frozen=True, slots=True)
class Held:
    """A running job. `until` is the latest time at which its GPUs are free again, as far as a policy knows."""

    job: Job
    nodes: tuple[int, ...]
    since: int
    until: int


@dataclass(slots=True)
class State:
    """The state that a policy may read. It must not change it."""

    cluster: Cluster
    now: int
    free: list[int]
    """GPUs free now, by node."""
    held: dict[int, Held]
    queue: dict[int, Job]
    """Queued jobs in order of arrival."""

    def until(self, job: Job, start: int) -> int:
        return start + job.requested + self.cluster.margin


Placement = tuple[Job, tuple[int, ...]]
"""A job and its nodes, one entry for each."""


class Policy(Protocol):
    def decide(self, state: State) -> Sequence[Placement]:
        """The jobs to start now, with nodes; called after each arrival and release."""


class Watcher(Protocol):
    """Observes all events and changes nothing."""

    def started(self, state: State, job: Job) -> None: ...
    def left(self, state: State, held: Held) -> None: ...
    def decided(self, state: State, arrived: Sequence[Job], until: int) -> None:
        """`arrived`: jobs that just arrived and have to wait. Nothing happens before `until`."""


def simulate(cluster: Cluster, trace: Sequence[Job], policy: Policy, watchers: Sequence[Watcher] = ()) -> State:
    """Run until all jobs have ended."""
    state = State(cluster, 0, [cluster.units] * cluster.nodes, {}, {})
    leaving: list[tuple[int, int]] = []
    coming = list(reversed(trace))
    while coming or leaving:
        state.now = _next(coming, leaving)
        while leaving and leaving[0][0] == state.now:
            held = free(state, heappop(leaving)[1])
            for watcher in watchers:
                watcher.left(state, held)
        arrived = []
        while coming and coming[-1].arrives == state.now:
            arrived.append(coming.pop())
            state.queue[arrived[-1].number] = arrived[-1]
        for job, nodes in policy.decide(state):
            place(state, job, nodes)
            heappush(leaving, (state.now + job.occupies, job.number))
            for watcher in watchers:
                watcher.started(state, job)
        waiting = [job for job in arrived if job.number in state.queue]
        for watcher in watchers:
            watcher.decided(state, waiting, _next(coming, leaving) if coming or leaving else state.now)
    if state.queue:
        raise AssertionError(f"{len(state.queue)} jobs never started")
    return state


def place(state: State, job: Job, nodes: tuple[int, ...]) -> None:
    if state.queue.pop(job.number, None) is None:
        raise AssertionError(f"job {job.number} is not queued")
    if len(nodes) != job.nodes or len(set(nodes)) != job.nodes:
        raise AssertionError(f"job {job.number} was given {nodes}")
    for node in nodes:
        state.free[node] -= job.units
        if state.free[node] < 0:
            raise AssertionError(f"node {node} has no {job.units} GPUs free")
    state.held[job.number] = Held(job, nodes, state.now, state.until(job, state.now))


def free(state: State, number: int) -> Held:
    held = state.held.pop(number)
    for node in held.nodes:
        state.free[node] += held.job.units
    return held


def predict_start(policy: Policy, state: State, job: Job) -> int:
    """When the job starts under the policy if no other job arrives and all run to their planned end."""
    later = State(state.cluster, state.now, list(state.free), dict(state.held), dict(state.queue))
    leaving = [(held.until, held.job.number) for held in later.held.values()]
    heapify(leaving)
    while leaving:
        later.now = leaving[0][0]
        while leaving and leaving[0][0] == later.now:
            free(later, heappop(leaving)[1])
        for started, nodes in policy.decide(later):
            place(later, started, nodes)
            heappush(leaving, (later.held[started.number].until, started.number))
        if job.number in later.held:
            return later.now
    raise AssertionError(f"job {job.number} never starts")


def _next(coming: list[Job], leaving: list[tuple[int, int]]) -> int:
    moments = [coming[-1].arrives] if coming else []
    if leaving:
        moments.append(leaving[0][0])
    return min(moments)
