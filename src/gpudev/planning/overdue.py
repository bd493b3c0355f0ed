"""What is over, for a system whose processor is away: whatever time alone would have ended, warned of or given up
since. Nobody is started, and nothing is taken for lost because it was not watched.
"""

from collections.abc import Sequence
from datetime import datetime

from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.reservations.readiness import ready_by
from gpudev.planning.reservations.reconcile_reservations import Decisions, decide_running
from gpudev.planning.reservations.stale_requests import decide_max_wait
from gpudev.ports.cluster import ClusterState
from gpudev.settings import TimingSettings


def decide_without_processor(
    reservations: Sequence[Reservation], state: ClusterState | None, now: datetime, timing: TimingSettings
) -> Decisions:
    over = [row for row in reservations if row.needs_teardown or _is_over(row, now, timing)]
    decisions = decide_running(over, state, now, timing)
    running = [row for row in reservations if row.status is Status.ACTIVE and not _is_over(row, now, timing)]
    # Without a view only time decides: a warning, or nothing.
    decisions.add(decide_running(running, None, now, timing))
    decisions.add(decide_max_wait(reservations, now))
    return decisions


def _is_over(row: Reservation, now: datetime, timing: TimingSettings) -> bool:
    if row.status is Status.PREPARING and row.preparing_at is not None:
        return ready_by(row, timing) <= now
    return row.expires_at is not None and row.expires_at <= now
