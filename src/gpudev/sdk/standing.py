"""Where a reservation stands, for whoever waits for it."""

from gpudev.domain.reservations.lifecycle import TERMINAL, Status
from gpudev.wire.reservations import JobView


def has_ended(job: JobView) -> bool:
    """A status a newer server may have invented counts as one that goes on."""
    return job.status in TERMINAL


def is_settled(job: JobView) -> bool:
    """Ready, or over: nothing is left to be waited for."""
    return job.status == Status.ACTIVE or has_ended(job)
