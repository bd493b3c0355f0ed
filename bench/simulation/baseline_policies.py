"""Baseline policies: plain FIFO and textbook EASY backfill, independent of our planner.

Both pack as we do (the fullest node that fits, ties by number), so that only the order differs. EASY: the first queued
job has a reservation at the earliest time it fits by the planned ends (the shadow time); a later job may start now if
it ends by then, or uses only GPUs that the first one leaves free at that time.
"""

from collections.abc import Iterable, Sequence

from bench.simulation.simulator import Placement, State
from bench.simulation.traces import Job


class Fifo:
    def decide(self, state: State) -> Sequence[Placement]:
        free = list(state.free)
        starts: list[Placement] = []
        for job in state.queue.values():
            nodes = fit(free, job, state.cluster.units)
            if nodes is None:
                break
            take(free, job, nodes)
            starts.append((job, nodes))
        return starts


class Easy:
    def decide(self, state: State) -> Sequence[Placement]:
        starts = list(Fifo().decide(state))
        if len(starts) == len(state.queue):
            return starts
        free = list(state.free)
        for job, nodes in starts:
            take(free, job, nodes)
        waiting = list(state.queue.values())[len(starts) :]
        if max(free) < min(job.units for job in waiting):
            return starts
        ends = [(state.until(job, state.now), job, nodes) for job, nodes in starts]
        ends += [(held.until, held.job, held.nodes) for held in state.held.values()]
        shadow, spare = _reservation(waiting[0], free, ends, state.cluster.units)
        for job in waiting[1:]:
            where = fit(free, job, state.cluster.units)
            if where is not None and state.until(job, state.now) > shadow:
                where = fit([min(now, then) for now, then in zip(free, spare, strict=True)], job, state.cluster.units)
                if where is not None:
                    take(spare, job, where)
            if where is not None:
                take(free, job, where)
                starts.append((job, where))
        return starts


def fit(free: Sequence[int], job: Job, node_units: int) -> tuple[int, ...] | None:
    """The fullest node with enough free GPUs, or as many whole nodes as a gang needs."""
    if job.nodes == 1:
        node = min((n for n, units in enumerate(free) if units >= job.units), key=free.__getitem__, default=None)
        return None if node is None else (node,)
    whole = [n for n, units in enumerate(free) if units == node_units]
    return tuple(whole[: job.nodes]) if len(whole) >= job.nodes else None


def take(free: list[int], job: Job, nodes: tuple[int, ...]) -> None:
    for node in nodes:
        free[node] -= job.units


def _reservation(
    first: Job, free: Sequence[int], ends: Iterable[tuple[int, Job, tuple[int, ...]]], node_units: int
) -> tuple[int, list[int]]:
    """The shadow time, and the GPUs left on each node then beside the first job."""
    then = list(free)
    shadow = 0
    waiting_for = sorted(ends, key=lambda end: (end[0], end[1].number))
    for at, (shadow, job, nodes) in enumerate(waiting_for, 1):
        for node in nodes:
            then[node] += job.units
        if at < len(waiting_for) and waiting_for[at][0] == shadow:
            continue
        place = fit(then, first, node_units)
        if place is not None:
            take(then, first, place)
            return shadow, then
    raise AssertionError(f"job {first.number} fits on no empty cluster")
