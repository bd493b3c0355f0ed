"""One turn's decisions about a queue, put together: who starts, what everybody else is told, what of it is written.

What must outlive a turn is handed in and out as `QueueMemory`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import Estimate, EstimateRecord, LateBecause
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.queue.forecasting import Forecast
from gpudev.planning.queue.plan import Start, Wait
from gpudev.planning.queue.queue_input import Scene
from gpudev.planning.reservations.reconcile_reservations import Decisions
from gpudev.planning.telling import is_delayed, is_due, is_newcomer, is_news, why_delayed
from gpudev.ports.reservations import Change, NewEvent, QueueUpdate


@dataclass(slots=True)
class QueueMemory:
    """What one GPU type's queue remembers from turn to turn."""

    promises: dict[ReservationId, Wait] = field(default_factory=dict)
    told: dict[ReservationId, EstimateRecord] = field(default_factory=dict)
    """What was last kept for comparison."""
    late: dict[ReservationId, LateBecause] = field(default_factory=dict)
    """Why those who can be promised nothing at the moment were not: it goes with the next thing they are told."""

    def only(self, waiting: Mapping[ReservationId, object]) -> "QueueMemory":
        """Of these alone; the memory is a new one."""
        return QueueMemory(
            {who: what for who, what in self.promises.items() if who in waiting},
            {who: what for who, what in self.told.items() if who in waiting},
            {who: what for who, what in self.late.items() if who in waiting},
        )


class Teller:
    """Turns a plan's answers into decisions, and keeps the memory up to date."""

    def __init__(self, scene: Scene, memory: QueueMemory) -> None:
        self._scene = scene
        self._clearing = scene.timing.teardown_margin
        self.decisions = Decisions()
        self.memory = memory

    def start(self, start: Start) -> None:
        row = self._scene.waiting[start.reservation_id]
        self.decisions.changes.append(_start(row, start, self._scene.now))
        self.decisions.starts.append(row)
        # Until it is seen to have started: a start that was not written is still a promise.
        names = tuple(share.node for share in start.shares)
        self.memory.promises[start.reservation_id] = Wait(start.reservation_id, 0, self._scene.now, names, "starts now")

    def wait(self, wait: Wait, forecast: Forecast | None) -> Estimate:
        row = self._scene.waiting[wait.reservation_id]
        span = forecast.span if forecast else None
        estimate = Estimate(wait.position, wait.starts_at, span, wait.reason, wait.nodes)
        because = self._tell(row, wait, estimate)
        self._keep(row, estimate, forecast, because)
        return estimate

    def _tell(self, row: Reservation, wait: Wait, estimate: Estimate) -> LateBecause | None:
        """Answers why it is later than it was told, if it is."""
        now, promises = self._scene.now, self.memory.promises
        promise = promises.get(row.reservation_id)
        promises[row.reservation_id] = _kept(promise, wait)
        if row.status is Status.PENDING:
            self.decisions.changes.append(_queue(row, estimate, now, self._clearing))
        elif promise is not None and is_delayed(promise, wait, row.created_at, now):
            because, words = self._why_delayed(promise)
            promises[row.reservation_id] = wait
            self.decisions.changes.append(_delay(row, _late(promise, estimate, words), estimate, now, self._clearing))
            return because
        elif is_news(row, estimate, now):
            starts_at = _by_planned_ends(estimate, self._clearing)
            self.decisions.updates.append(QueueUpdate(row.reservation_id, estimate, starts_at))
        return self.memory.late.get(row.reservation_id)

    def _keep(
        self, row: Reservation, estimate: Estimate, forecast: Forecast | None, because: LateBecause | None
    ) -> None:
        """What is to be compared with what happens."""
        who, now = row.reservation_id, self._scene.now
        if forecast is not None and estimate.latest is not None:
            self.memory.late.pop(who, None)
            if because or is_due(self.memory.told.get(who), now):
                typical, is_new = forecast.told.typical, is_newcomer(row, now)
                record = EstimateRecord(
                    who, now, estimate.position, estimate.latest, forecast.span, typical, is_new, because
                )
                self.memory.told[who] = record
                self.decisions.told.append(record)
        elif because is not None:
            self.memory.late[who] = because

    def _why_delayed(self, promise: Wait) -> tuple[LateBecause, str]:
        scene = self._scene
        own = next(request for request in scene.requests if request.reservation_id == promise.reservation_id)
        because, words = why_delayed(
            promise,
            own,
            nodes=scene.nodes,
            holdings=scene.holdings,
            preparing=scene.preparing(),
            queue=scene.requests,
            now=scene.now,
            preparing_margin=scene.timing.preparing_margin,
        )
        if because is LateBecause.UNEXPLAINED and scene.is_fair_share:
            return LateBecause.FAIR_SHARE, "others have used less and go first (fair share)"
        return because, words


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
