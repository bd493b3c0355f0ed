"""Estimate updates: which changes of a plan are written and recorded.

A full queue must not cost one write per request at every event. A change is written if it is large for its owner: the
10th request's position may move by one, the 1,000th's by a hundred. State that outlives a cycle is passed in and out
as `QueueMemory`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import DelayCause, Estimate, EstimateRecord
from gpudev.domain.reservations import changes
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.decisions import Decisions
from gpudev.planning.queue.delay_reasons import get_delay_cause, is_delayed
from gpudev.planning.queue.forecasting import NEWCOMER_FOR, Forecast
from gpudev.planning.queue.plan import Queued, Start
from gpudev.planning.queue.queue_input import QueueInput

_SIGNIFICANT_SHARE = 0.1
_LEAST_SHIFT = timedelta(seconds=30)
RECORD_EVERY = timedelta(hours=1)
"""While a request waits, its estimate is recorded this often."""


def is_worth_writing(row: Reservation, estimate: Estimate, now: datetime) -> bool:
    """Whether the row's estimate differs materially from the plan."""
    written = row.estimate
    if written is None or abs(estimate.position - written.position) > written.position * _SIGNIFICANT_SHARE:
        return True
    at_the_front = estimate.position * _SIGNIFICANT_SHARE <= 1
    if at_the_front and estimate.reason != written.reason:
        return True
    share = 0.0 if at_the_front else _SIGNIFICANT_SHARE
    written_expected = written.interval.expected if written.interval else None
    expected = estimate.interval.expected if estimate.interval else None
    # Expected starts drift all the time: even at the front only a large step is written.
    return _has_moved(written.latest, estimate.latest, now, share) or _has_moved(
        written_expected, expected, now, _SIGNIFICANT_SHARE
    )


def is_record_due(last: EstimateRecord | None, now: datetime) -> bool:
    """Whether the current estimate is recorded, for comparison with the actual start."""
    return last is None or now - last.made_at >= RECORD_EVERY


def is_newcomer(row: Reservation, now: datetime) -> bool:
    return now - row.created_at < NEWCOMER_FOR


def _has_moved(before: datetime | None, after: datetime | None, now: datetime, share: float) -> bool:
    if before is None or after is None:
        return before != after
    return abs(after - before) >= max(_LEAST_SHIFT, (after - now) * share)


@dataclass(slots=True)
class QueueMemory:
    """State of one GPU type's queue that is kept between cycles."""

    promises: dict[ReservationId, Estimate] = field(default_factory=dict)
    recorded: dict[ReservationId, EstimateRecord] = field(default_factory=dict)
    """The latest record of each request."""
    delay_causes: dict[ReservationId, DelayCause] = field(default_factory=dict)
    """Causes of requests that have no guaranteed start at present; recorded with their next estimate."""

    def only_waiting(self, waiting: Mapping[ReservationId, object]) -> "QueueMemory":
        """A copy, restricted to these requests."""
        return QueueMemory(
            {key: value for key, value in self.promises.items() if key in waiting},
            {key: value for key, value in self.recorded.items() if key in waiting},
            {key: value for key, value in self.delay_causes.items() if key in waiting},
        )


class EstimateUpdater:
    """Turns the planner's results into decisions and updates the memory."""

    def __init__(self, queue_input: QueueInput, memory: QueueMemory) -> None:
        self._queue_input = queue_input
        self._teardown_margin = queue_input.timing.teardown_margin
        self.decisions = Decisions()
        self.memory = memory

    def add_start(self, start: Start) -> None:
        row = self._queue_input.waiting[start.reservation_id]
        self.decisions.changes.append(changes.preparing(row, start.shares, self._queue_input.now))
        self.decisions.starts.append(row)
        # Kept until the start is observed: if the write failed, the start is still promised.
        names = tuple(share.node for share in start.shares)
        self.memory.promises[start.reservation_id] = Estimate(0, self._queue_input.now, None, "starts now", names)

    def add_queued(self, wait: Queued, forecast: Forecast | None) -> Estimate:
        row = self._queue_input.waiting[wait.reservation_id]
        planned = wait.estimate
        if forecast is None:
            estimate = planned
        else:
            estimate = Estimate(planned.position, planned.latest, forecast.interval, planned.reason, planned.nodes)
        cause = self._update_estimate(row, estimate)
        self._record_estimate(row, estimate, forecast, cause)
        return estimate

    def _update_estimate(self, row: Reservation, estimate: Estimate) -> DelayCause | None:
        """The delay cause, if its start became later."""
        now, promises = self._queue_input.now, self.memory.promises
        promise = promises.get(row.reservation_id)
        promises[row.reservation_id] = _earlier_promise(promise, estimate)
        if row.status is Status.PENDING:
            self.decisions.changes.append(changes.queued(row, estimate, now, self._teardown_margin))
        elif promise is not None and is_delayed(promise, estimate, row.created_at, now):
            cause, explanation = get_delay_cause(self._queue_input, row, promise)
            promises[row.reservation_id] = estimate
            self.decisions.changes.append(
                changes.delayed(row, estimate, now, self._teardown_margin, promised=promise.latest, why=explanation)
            )
            return cause
        elif is_worth_writing(row, estimate, now):
            self.decisions.updates[row.reservation_id] = estimate
        return self.memory.delay_causes.get(row.reservation_id)

    def _record_estimate(
        self, row: Reservation, estimate: Estimate, forecast: Forecast | None, cause: DelayCause | None
    ) -> None:
        """For comparison with the actual start."""
        reservation_id, now = row.reservation_id, self._queue_input.now
        if forecast is not None and estimate.latest is not None:
            self.memory.delay_causes.pop(reservation_id, None)
            if cause or is_record_due(self.memory.recorded.get(reservation_id), now):
                typical, is_new = forecast.prediction.typical, is_newcomer(row, now)
                record = EstimateRecord(
                    reservation_id, now, estimate.position, estimate.latest, forecast.interval, typical, is_new, cause
                )
                self.memory.recorded[reservation_id] = record
                self.decisions.estimates.append(record)
        elif cause is not None:
            self.memory.delay_causes[reservation_id] = cause


def _earlier_promise(promise: Estimate | None, estimate: Estimate) -> Estimate:
    """The promise from now on: the earlier of the previous one and the current plan."""
    if promise is None or promise.latest is None:
        return estimate
    if estimate.latest is not None and estimate.latest <= promise.latest:
        return estimate
    return promise
