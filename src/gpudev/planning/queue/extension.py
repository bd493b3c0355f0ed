"""Extension: how long may a running reservation be extended?

Freely while nobody waits for its GPUs; otherwise as far as no guaranteed start is delayed. The answer is always
verified by planning with it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from gpudev.domain.cluster import Allocation, Node
from gpudev.domain.ids import ReservationId, short_id
from gpudev.domain.queue import Estimate
from gpudev.planning.queue.plan import Queued, Request, Start
from gpudev.planning.queue.planner import DEFAULT_MARGIN, plan_type
from gpudev.planning.queue.queue_input import split_by_type
from gpudev.settings import LimitSettings


@dataclass(frozen=True, slots=True)
class ExtensionGranted:
    until: datetime


@dataclass(frozen=True, slots=True)
class ExtensionDenied:
    reason: str
    at_most: datetime | None = None
    """The latest end that would be granted. None: it cannot be extended at all."""
    invalid: bool = False
    """True: the value itself is invalid, whatever the state of the cluster."""


@dataclass(frozen=True, slots=True)
class _DelayedStart:
    reservation_id: ReservationId
    planned: datetime


def decide_extension(
    reservation_id: ReservationId,
    allocation: Allocation,
    hours: float,
    *,
    nodes: Sequence[Node],
    allocations: Sequence[Allocation],
    queue: Sequence[Request],
    now: datetime,
    launched_at: datetime,
    limits: LimitSettings,
    teardown_margin: timedelta = DEFAULT_MARGIN,
    promises: Mapping[ReservationId, Estimate] | None = None,
) -> ExtensionGranted | ExtensionDenied:
    """`allocations`: all of them, with or without this one. `queue`: all queued requests, of any type; `promises`:
    their estimates. `teardown_margin`: included in the allocation's `until`."""
    if not math.isfinite(hours) or hours <= 0:
        return ExtensionDenied("an extension must be more than 0 hours", invalid=True)
    end = None if allocation.until is None else allocation.until - teardown_margin
    if end is None or end <= now:
        return ExtensionDenied("its time is over; reserve again")
    last = launched_at + timedelta(hours=limits.max_hours_with_extensions)
    room = max(timedelta(0), last - end)
    within_limit = hours <= room / timedelta(hours=1)
    wanted = end + (timedelta(hours=hours) if within_limit else room)
    others = [other for other in allocations if other.reservation_id != reservation_id]
    waiting = [request for request in queue if request.gpu_type == allocation.gpu_type]
    trial = _ExtensionTrial(allocation, nodes, others, waiting, promises or {}, now, teardown_margin)
    delayed = trial.first_delayed(wanted) if wanted > end else None
    if delayed is None and within_limit:
        return ExtensionGranted(wanted)
    furthest = wanted if delayed is None else trial.furthest(end, wanted)
    at_most = furthest if furthest > end else None
    if delayed is None:
        most = f"a reservation lasts at most {limits.max_hours_with_extensions:g} hours with its extensions"
        return ExtensionDenied(f"{most}; {_latest_end_note(at_most)}", at_most)
    start = _format_time(delayed.planned)
    delayed_request = f"reservation {short_id(delayed.reservation_id)} waits and is guaranteed to start by {start}"
    return ExtensionDenied(f"{delayed_request}, which this would delay; {_latest_end_note(at_most)}", at_most)


@dataclass(slots=True)
class _ExtensionTrial:
    """Plans with another end of the allocation and finds requests that would start later than promised (without a
    promise: later than in the current plan)."""

    allocation: Allocation
    nodes: Sequence[Node]
    others: Sequence[Allocation]
    waiting: Sequence[Request]
    promises: Mapping[ReservationId, Estimate]
    now: datetime
    teardown_margin: timedelta
    planned: dict[ReservationId, datetime | None] = field(init=False)

    def __post_init__(self) -> None:
        self.planned = {each.reservation_id: self._start_of(each) for each in self._plan(self.allocation.until)}
        for reservation_id, promise in self.promises.items():
            planned = self.planned.get(reservation_id)
            if planned is not None and promise.latest is not None:
                self.planned[reservation_id] = max(planned, promise.latest)

    def first_delayed(self, until: datetime) -> _DelayedStart | None:
        for decision in self._plan(until + self.teardown_margin):
            planned = self.planned[decision.reservation_id]
            if planned is None:
                continue
            start = self._start_of(decision)
            if start is None or start > planned:
                return _DelayedStart(decision.reservation_id, planned)
        return None

    def furthest(self, end: datetime, wanted: datetime) -> datetime:
        """The latest end before `wanted` that delays no request. Only planned starts need to be tried: between two of
        them, a later end delays nothing more."""
        starts = {start - self.teardown_margin for start in self.planned.values() if start is not None}
        moments = sorted(moment for moment in starts if end < moment < wanted)
        allowed = end
        while moments:
            middle = len(moments) // 2
            if self.first_delayed(moments[middle]) is None:
                allowed, moments = moments[middle], moments[middle + 1 :]
            else:
                moments = moments[:middle]
        return allowed

    def _plan(self, until: datetime | None) -> Iterator[Start | Queued]:
        allocations = [*self.others, replace(self.allocation, until=until)]
        for facts, requests in split_by_type(self.nodes, allocations, self.waiting, self.now, self.teardown_margin):
            yield from plan_type(facts, requests, self.promises)

    def _start_of(self, decision: Start | Queued) -> datetime | None:
        return self.now if isinstance(decision, Start) else decision.estimate.latest


def _latest_end_note(at_most: datetime | None) -> str:
    return "it cannot be extended" if at_most is None else f"it can be extended until {_format_time(at_most)}"


def _format_time(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
