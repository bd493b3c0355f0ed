"""Virtual time: requests arrive, a policy starts some, those that started leave when their people do.

It keeps the books (who holds what, who waits, what was free) and believes no policy: a start that does not fit is an
error. It refuses to know why anybody was started, and it never tells a policy how long somebody will really stay.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Protocol

from bench.simulation.traces import Cluster, Job


@dataclass(frozen=True, slots=True)
class Held:
    """A job that has its GPUs. `until` is the last moment at which they are free again, as far as anybody knows."""

    job: Job
    nodes: tuple[int, ...]
    since: int
    until: int


@dataclass(slots=True)
class State:
    """What a policy may see. It must not write to it."""

    cluster: Cluster
    now: int
    free: list[int]
    """GPUs free now, by node."""
    held: dict[int, Held]
    queue: dict[int, Job]
    """Who waits, in order of arrival."""

    def until(self, job: Job, start: int) -> int:
        return start + job.asked + self.cluster.margin


Placement = tuple[Job, tuple[int, ...]]
"""A job and its nodes, one entry for each."""


class Policy(Protocol):
    def decide(self, state: State) -> Sequence[Placement]:
        """Who starts now, and where; asked whenever somebody came or GPUs became free."""


class Watcher(Protocol):
    """Sees everything that happens, and changes nothing."""

    def started(self, state: State, job: Job) -> None: ...
    def left(self, state: State, held: Held) -> None: ...
    def decided(self, state: State, arrived: Sequence[Job], until: int) -> None:
        """`arrived`: whoever came just now and has to wait. Nothing happens before `until`."""


def simulate(cluster: Cluster, trace: Sequence[Job], policy: Policy, watchers: Sequence[Watcher] = ()) -> State:
    """Until everybody has come and gone."""
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
        raise AssertionError(f"job {job.number} does not wait")
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


def foresee(policy: Policy, state: State, job: Job) -> int:
    """When the job starts under the policy if nobody else comes and everybody stays to the planned end."""
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
