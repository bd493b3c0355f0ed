"""One turn of one GPU type's queue: who starts, where everybody else stands, what of it is told and written down.

What must outlive a turn is handed in and out: the promises (nobody is planned later than they were told) and what
was last told for comparison. Everything else follows from the facts.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gpudev.domain.capacity import Holding, Node
from gpudev.domain.estimate import Estimate, EstimateRecord, LateBecause, QueuePlan
from gpudev.domain.ids import ReservationId, new_reservation_id
from gpudev.domain.lifecycle import Status
from gpudev.domain.reservation import Reservation
from gpudev.planning.facts import TypeFacts, by_type
from gpudev.planning.forecasting import NOTHING_KNOWN, Experience, Forecast, Known, TypeForecast
from gpudev.planning.outlook import offers, sizes_of
from gpudev.planning.plan import Request, Start, Wait
from gpudev.planning.queueing import plan_type
from gpudev.planning.spans import asked_by, held_by
from gpudev.planning.telling import is_delayed, is_due, is_newcomer, is_news, why_delayed
from gpudev.planning.turn import Decisions
from gpudev.ports.stores import Change, NewEvent, QueueUpdate
from gpudev.settings import Timing


@dataclass(frozen=True, slots=True)
class QueueMemory:
    """What one GPU type's queue remembers from turn to turn."""

    promises: Mapping[ReservationId, Wait] = field(default_factory=dict)
    told: Mapping[ReservationId, EstimateRecord] = field(default_factory=dict)
    """What was last kept for comparison."""
    late: Mapping[ReservationId, LateBecause] = field(default_factory=dict)
    """Why those who can be promised nothing at the moment were not: it goes with the next thing they are told."""


@dataclass(frozen=True, slots=True)
class QueueTurn:
    decisions: Decisions
    plan: QueuePlan
    memory: QueueMemory


def decide_queue(
    reservations: Sequence[Reservation],
    nodes: Sequence[Node],
    now: datetime,
    timing: Timing,
    gpu_type: str,
    *,
    memory: QueueMemory | None = None,
    experience: Experience = NOTHING_KNOWN,
    turns: Mapping[ReservationId, int] | None = None,
) -> QueueTurn:
    """`reservations`: everything unreleased, of any type; `nodes`: all there are. `turns`: whose turn it is by fair
    share; then what was told before does not bind: who used less may come and go first."""
    turn = _Turn(
        reservations,
        nodes,
        now,
        timing,
        gpu_type,
        memory=memory or QueueMemory(),
        experience=experience,
        turns=turns,
    )
    return turn.decide()


class _Turn:
    def __init__(
        self,
        reservations: Sequence[Reservation],
        nodes: Sequence[Node],
        now: datetime,
        timing: Timing,
        gpu_type: str,
        *,
        memory: QueueMemory,
        experience: Experience,
        turns: Mapping[ReservationId, int] | None,
    ) -> None:
        self.turns = turns
        self.now = now
        self.timing = timing
        self.gpu_type = gpu_type
        self.memory = memory
        self.waiting = {r.reservation_id: r for r in reservations if r.gpu_type == gpu_type and r.status.is_waiting}
        self.nodes = [node for node in nodes if node.gpu_type == gpu_type]
        names = {node.name for node in self.nodes}
        # Whatever is held there, by whichever type: a node may have come back as another one.
        self.holders = [r for r in reservations if any(share.node in names for share in r.shares)]
        self.holdings: list[Holding] = [held for r in self.holders if (held := held_by(r, now, timing)) is not None]
        self.facts, self.requests = self._facts(
            [asked_by(r, timing, (turns or {}).get(r.reservation_id, 0)) for r in self.waiting.values()]
        )
        began = {r.reservation_id: r.launched_at for r in self.holders if r.launched_at is not None}
        self.habits = experience.habits.counts
        self.known = Known.of(experience)
        self.forecast = TypeForecast(self.facts, self.requests, began, self.known, sizes_of(self.facts))
        self.decisions = Decisions()
        self.told: dict[ReservationId, EstimateRecord] = {}
        self.promises: dict[ReservationId, Wait] = {}
        self.late: dict[ReservationId, LateBecause] = {}

    def decide(self) -> QueueTurn:
        bound = self.memory.promises if self.turns is None else None
        plan = {each.reservation_id: each for each in plan_type(self.facts, self.requests, bound)}
        waits = [each for each in plan.values() if isinstance(each, Wait)]
        came = {rid: row.created_at for rid, row in self.waiting.items()}
        forecasts = self.forecast.of_waiting({wait.reservation_id: wait.starts_at for wait in waits}, came)
        estimates: dict[ReservationId, Estimate] = {}
        for each in plan.values():
            row = self.waiting[each.reservation_id]
            if isinstance(each, Start):
                self.decisions.changes.append(_start(row, each, self.now))
                self.decisions.starts.append(row)
                # Until it is seen to have started: a start that was not written is still a promise.
                names = tuple(share.node for share in each.shares)
                self.promises[each.reservation_id] = Wait(each.reservation_id, 0, self.now, names, "starts now")
                continue
            forecast = forecasts.get(each.reservation_id)
            estimate = Estimate(
                each.position, each.starts_at, forecast.span if forecast else None, each.reason, each.nodes
            )
            estimates[each.reservation_id] = estimate
            self._tell(row, each, estimate, forecast)
        published = QueuePlan(
            self.gpu_type,
            self.now,
            max((row.seq for row in self.waiting.values()), default=0),
            estimates,
            tuple(offers(self.facts, plan, self.requests, self.forecast, self.timing.around_a_stay)),
            self.habits,
            self.known.newcomers.factors,
        )
        return QueueTurn(self.decisions, published, QueueMemory(self.promises, self.told, self.late))

    def _tell(self, row: Reservation, wait: Wait, estimate: Estimate, forecast: Forecast | None) -> None:
        promise = self.memory.promises.get(row.reservation_id)
        last = self.memory.told.get(row.reservation_id)
        because = self.memory.late.get(row.reservation_id)
        self.promises[row.reservation_id] = _kept(promise, wait)
        if row.status is Status.PENDING:
            self.decisions.changes.append(_queue(row, estimate, self.now, self.timing.teardown_margin))
        elif promise is not None and is_delayed(promise, wait, row.created_at, self.now):
            because, words = self._why_delayed(promise)
            self.promises[row.reservation_id] = wait
            self.decisions.changes.append(
                _delay(row, _late(promise, estimate, words), estimate, self.now, self.timing.teardown_margin)
            )
        elif is_news(row, estimate, self.now):
            starts_at = _by_planned_ends(estimate, self.timing.teardown_margin)
            self.decisions.updates.append(QueueUpdate(row.reservation_id, estimate, starts_at))
        if last is not None:
            self.told[row.reservation_id] = last
        if forecast is not None and estimate.latest is not None and (because or is_due(last, self.now)):
            record = EstimateRecord(
                row.reservation_id,
                self.now,
                estimate.position,
                estimate.latest,
                forecast.span,
                forecast.told.typical,
                is_newcomer(row, self.now),
                because,
            )
            self.told[row.reservation_id] = record
            self.decisions.told.append(record)
        elif because is not None:
            self.late[row.reservation_id] = because

    def _why_delayed(self, promise: Wait) -> tuple[LateBecause, str]:
        because, words = self._why_by_the_facts(promise)
        if because is LateBecause.UNEXPLAINED and self.turns is not None:
            return LateBecause.FAIR_SHARE, "others have used less and go first (fair share)"
        return because, words

    def _why_by_the_facts(self, promise: Wait) -> tuple[LateBecause, str]:
        own = next(request for request in self.requests if request.reservation_id == promise.reservation_id)
        preparing = [row for row in self.holders if row.status is Status.PREPARING]
        return why_delayed(
            promise,
            own,
            nodes=self.nodes,
            holdings=self.holdings,
            preparing=preparing,
            queue=self.requests,
            now=self.now,
            preparing_margin=self.timing.preparing_margin,
        )

    def _facts(self, queue: list[Request]) -> tuple[TypeFacts, list[Request]]:
        """Also where nobody waits: a newcomer wants to know what they would be told."""
        margin = self.timing.teardown_margin
        ((facts, requests),) = by_type(self.nodes, self.holdings, queue or [_anybody(self.gpu_type)], self.now, margin)
        return facts, requests if queue else []


def _anybody(gpu_type: str) -> Request:
    return Request(new_reservation_id(), 0, gpu_type, 1, 1, timedelta(hours=1))


def promises_of(plan: QueuePlan) -> dict[ReservationId, Wait]:
    """What a published plan promised: for a processor that takes over."""
    return {rid: Wait(rid, told.position, told.latest, told.nodes, told.reason) for rid, told in plan.waits.items()}


def _kept(promise: Wait | None, wait: Wait) -> Wait:
    """What it is held to from now on: the earlier of what it was told and what is planned now."""
    if promise is None or promise.starts_at is None:
        return wait
    if wait.starts_at is not None and wait.starts_at <= promise.starts_at:
        return wait
    return promise


def _start(reservation: Reservation, start: Start, now: datetime) -> Change:
    unit = "GPU" if reservation.gpu_count else "CPU slot"
    places = ", ".join(f"{share.units} {unit}{'s' * (share.units > 1)} on {share.node}" for share in start.shares)
    return Change(
        reservation.reservation_id,
        reservation.status,
        reservation.version,
        NewEvent("preparing", f"got its place: {places}"),
        to=Status.PREPARING,
        fields={"preparing_at": now, "step": "starting the dev server", "launch_attempts": 0},
        shares=start.shares,
    )


def _queue(row: Reservation, estimate: Estimate, now: datetime, clearing: timedelta) -> Change:
    when = f", starts by {estimate.latest:%Y-%m-%d %H:%M} UTC at the latest" if estimate.latest else ""
    event = NewEvent("queued", f"waits at position {estimate.position}{when}: {estimate.reason}")
    fields = _fields(estimate, now, clearing)
    return Change(row.reservation_id, row.status, row.version, event, to=Status.QUEUED, fields=fields)


def _delay(row: Reservation, event: NewEvent, estimate: Estimate, now: datetime, clearing: timedelta) -> Change:
    return Change(row.reservation_id, row.status, row.version, event, fields=_fields(estimate, now, clearing))


def _late(told: Wait, estimate: Estimate, why: str) -> NewEvent:
    before = f" instead of {told.starts_at:%Y-%m-%d %H:%M}" if told.starts_at else ""
    when = f"by {estimate.latest:%Y-%m-%d %H:%M} UTC{before}" if estimate.latest else "nobody can say when"
    return NewEvent("delayed", f"starts later than told, {when}: {why}")


def _fields(estimate: Estimate, now: datetime, clearing: timedelta) -> dict[str, object]:
    span = estimate.span
    starts_at = _by_planned_ends(estimate, clearing)
    awaited = span.expected if span else starts_at
    return {
        "queue_position": estimate.position,
        "estimated_start_at": starts_at,
        "estimated_wait_minutes": awaited and max(0, math.ceil((awaited - now) / timedelta(minutes=1))),
        "latest_start_at": estimate.latest,
        "expected_start_at": span and span.expected,
        "expected_earliest_at": span and span.earliest,
        "expected_latest_at": span and span.latest_likely,
        "wait_reason": estimate.reason,
        "last_queue_update": now,
    }


def _by_planned_ends(estimate: Estimate, clearing: timedelta) -> datetime | None:
    return None if estimate.latest is None else estimate.latest - clearing
