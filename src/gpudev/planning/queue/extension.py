"""Extending: how long may a running reservation stay? Freely while nobody waits for its GPUs; otherwise only as
far as it moves nobody's promised start. What it answers is always checked by making the plan that would follow."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from gpudev.domain.cluster import Holding, Node
from gpudev.domain.ids import ReservationId, short_id
from gpudev.planning.facts import by_type
from gpudev.planning.queue.plan import Request, Start, Wait
from gpudev.planning.queue.planner import DEFAULT_MARGIN, plan_type
from gpudev.settings import Limits


@dataclass(frozen=True, slots=True)
class Granted:
    until: datetime


@dataclass(frozen=True, slots=True)
class NotGranted:
    reason: str
    at_most: datetime | None = None
    """The end that would be granted instead; None: it cannot stay longer at all."""
    invalid: bool = False
    """True: the number itself is wrong; no state of the cluster would allow it."""


@dataclass(frozen=True, slots=True)
class _Delayed:
    reservation_id: ReservationId
    planned: datetime


def extend(
    reservation_id: ReservationId,
    holding: Holding,
    hours: float,
    *,
    nodes: Sequence[Node],
    holdings: Sequence[Holding],
    queue: Sequence[Request],
    now: datetime,
    launched_at: datetime,
    limits: Limits,
    clearing: timedelta = DEFAULT_MARGIN,
    promises: Mapping[ReservationId, Wait] | None = None,
) -> Granted | NotGranted:
    """`holdings` is everything held, this one included or not; `queue` is everybody who waits, of any type, and
    `promises` what they were told. `clearing` is what the holding's `until` has beyond its end."""
    if not math.isfinite(hours) or hours <= 0:
        return NotGranted("an extension must be more than 0 hours", invalid=True)
    end = None if holding.until is None else holding.until - clearing
    if end is None or end <= now:
        return NotGranted("its time is over; reserve again")
    last = launched_at + timedelta(hours=limits.max_hours_with_extensions)
    room = max(timedelta(0), last - end)
    within_limit = hours <= room / timedelta(hours=1)
    wanted = end + (timedelta(hours=hours) if within_limit else room)
    others = [other for other in holdings if other.reservation_id != reservation_id]
    waiting = [request for request in queue if request.gpu_type == holding.gpu_type]
    trial = _Trial(holding, nodes, others, waiting, promises or {}, now, clearing)
    delayed = trial.first_delayed(wanted) if wanted > end else None
    if delayed is None and within_limit:
        return Granted(wanted)
    furthest = wanted if delayed is None else trial.furthest(end, wanted)
    at_most = furthest if furthest > end else None
    if delayed is None:
        most = f"a reservation lasts at most {limits.max_hours_with_extensions:g} hours with its extensions"
        return NotGranted(f"{most}; {_stays(at_most)}", at_most)
    waiter = (
        f"reservation {short_id(delayed.reservation_id)} waits and was promised to start by {_clock(delayed.planned)}"
    )
    return NotGranted(f"{waiter}, which this would delay; {_stays(at_most)}", at_most)


@dataclass(slots=True)
class _Trial:
    """Makes the plan with another end for the holding and looks who would start later than promised; who was not
    promised anything yet, later than without."""

    holding: Holding
    nodes: Sequence[Node]
    others: Sequence[Holding]
    waiting: Sequence[Request]
    promises: Mapping[ReservationId, Wait]
    now: datetime
    clearing: timedelta
    planned: dict[ReservationId, datetime | None] = field(init=False)

    def __post_init__(self) -> None:
        self.planned = {each.reservation_id: self._start_of(each) for each in self._plan(self.holding.until)}
        for reservation_id, told in self.promises.items():
            planned = self.planned.get(reservation_id)
            if planned is not None and told.starts_at is not None:
                self.planned[reservation_id] = max(planned, told.starts_at)

    def first_delayed(self, until: datetime) -> _Delayed | None:
        for decision in self._plan(until + self.clearing):
            planned = self.planned[decision.reservation_id]
            if planned is None:
                continue
            start = self._start_of(decision)
            if start is None or start > planned:
                return _Delayed(decision.reservation_id, planned)
        return None

    def furthest(self, end: datetime, wanted: datetime) -> datetime:
        """The latest end before `wanted` that delays nobody. Only planned starts come into question: between two
        of them a longer stay takes nothing more from anybody."""
        starts = {start - self.clearing for start in self.planned.values() if start is not None}
        moments = sorted(moment for moment in starts if end < moment < wanted)
        allowed = end
        while moments:
            middle = len(moments) // 2
            if self.first_delayed(moments[middle]) is None:
                allowed, moments = moments[middle], moments[middle + 1 :]
            else:
                moments = moments[:middle]
        return allowed

    def _plan(self, until: datetime | None) -> Iterator[Start | Wait]:
        holdings = [*self.others, replace(self.holding, until=until)]
        for facts, requests in by_type(self.nodes, holdings, self.waiting, self.now, self.clearing):
            yield from plan_type(facts, requests, self.promises)

    def _start_of(self, decision: Start | Wait) -> datetime | None:
        return self.now if isinstance(decision, Start) else decision.starts_at


def _stays(at_most: datetime | None) -> str:
    return "it cannot stay longer" if at_most is None else f"it can stay until {_clock(at_most)}"


def _clock(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
