"""Stale requests: past their maximum wait, or not examined by any processor.

Rows of queued requests are written only on material changes, so an old row means nothing. What the planner examined
is recorded separately (`PlanningRecords`). While no processor runs, nothing is stale: the system is down, not the
request.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpudev.domain.reservations import changes
from gpudev.domain.reservations.changes import Change
from gpudev.domain.reservations.reservation import Reservation, format_minutes
from gpudev.planning.decisions import Decisions
from gpudev.ports.queue import PlanningRecords

ALIVE_WITHIN = timedelta(minutes=1)
"""A processor that has examined nothing for this long (it may not reach its cluster) does not count as running."""
STALE_AFTER = timedelta(minutes=5)
"""A queued request that a running processor has not examined for this long is sent again, then cancelled."""


@dataclass(frozen=True, slots=True)
class ResendRequest:
    change: Change


@dataclass(frozen=True, slots=True)
class CancelStaleRequest:
    change: Change


def decide_stale_requests(
    reservations: Iterable[Reservation], records: PlanningRecords, now: datetime, patience: timedelta = STALE_AFTER
) -> list[ResendRequest | CancelStaleRequest]:
    """Unexamined for `patience`: sent again. Unexamined for as long after that: cancelled."""
    if records.at is None or records.since is None or now - records.at > ALIVE_WITHIN:
        return []
    waiting = (row for row in reservations if row.status.is_waiting)
    found = (_decide_request(row, _unexamined_since(row, records, records.since), now, patience) for row in waiting)
    return [decision for decision in found if decision is not None]


def decide_max_wait(reservations: Sequence[Reservation], now: datetime) -> Decisions:
    """Cancels requests that have reached their maximum wait."""
    decisions = Decisions()
    for row in reservations:
        if not row.status.is_waiting or row.wait_until is None:
            continue
        if row.wait_until > now:
            decisions.recheck_at(row.wait_until)
            continue
        waited = _format_duration(row.wait_until - row.created_at)
        reason = f"maximum wait of {waited} reached"
        decisions.changes.append(changes.cancelled(row, reason, now, failure_reason=reason))
    return decisions


def without_given_up(reservations: Sequence[Reservation], given_up: Decisions) -> Sequence[Reservation]:
    """Without those cancelled in this cycle, except those that still hold an allocation."""
    cancelled = {change.reservation_id for change in given_up.changes}
    if not cancelled:
        return reservations
    return [row for row in reservations if row.reservation_id not in cancelled or row.shares]


def _unexamined_since(row: Reservation, records: PlanningRecords, working_since: datetime) -> datetime:
    looked_at, seqs = records.by_type.get(row.gpu_type, (None, frozenset[int]()))
    seen_at = looked_at if looked_at is not None and row.seq in seqs else row.created_at
    return max(row.created_at, working_since, seen_at)


def _decide_request(
    row: Reservation, unexamined_since: datetime, now: datetime, patience: timedelta
) -> ResendRequest | CancelStaleRequest | None:
    if now - unexamined_since < patience:
        return None
    if row.resent_at is None or row.resent_at < unexamined_since:
        return ResendRequest(changes.resent(row, now, _format_duration(now - unexamined_since)))
    if now - row.resent_at < patience:
        return None
    unexamined = _format_duration(now - unexamined_since)
    reason = (
        f"no processor examined it for {unexamined}, not even after it was sent again; "
        "ask an operator, then submit it again"
    )
    return CancelStaleRequest(changes.cancelled(row, reason, now, failure_reason=reason))


def _format_duration(span: timedelta) -> str:
    if span < timedelta(minutes=1):
        seconds = max(1, round(span / timedelta(seconds=1)))
        return f"{seconds} second{'' if seconds == 1 else 's'}"
    minutes = round(span / timedelta(minutes=1))
    if minutes < 120:
        return format_minutes(minutes)
    return f"{span / timedelta(hours=1):.3g} hours"
