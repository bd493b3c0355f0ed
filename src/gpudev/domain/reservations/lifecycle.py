"""A reservation's statuses and the table of legal transitions."""

from collections.abc import Mapping
from enum import StrEnum

from gpudev.domain.errors import IllegalTransition


class Status(StrEnum):
    PENDING = "pending"
    QUEUED = "queued"
    PREPARING = "preparing"
    ACTIVE = "active"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def is_terminal(self) -> bool:
        return not TRANSITIONS[self]

    @property
    def is_waiting(self) -> bool:
        return self in WAITING

    @property
    def holds_capacity(self) -> bool:
        """Whether this status has a placement (a terminal one keeps its GPUs until the release)."""
        return self in (Status.PREPARING, Status.ACTIVE)


TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    Status.PENDING: frozenset({Status.QUEUED, Status.PREPARING, Status.CANCELLED, Status.FAILED}),
    Status.QUEUED: frozenset({Status.PREPARING, Status.CANCELLED, Status.FAILED}),
    # Requeued: the cluster rejected the placement before anything ran there.
    Status.PREPARING: frozenset({Status.ACTIVE, Status.QUEUED, Status.CANCELLED, Status.FAILED}),
    Status.ACTIVE: frozenset({Status.EXPIRED, Status.CANCELLED, Status.FAILED}),
    Status.EXPIRED: frozenset(),
    Status.CANCELLED: frozenset(),
    Status.FAILED: frozenset(),
}
WAITING = frozenset({Status.PENDING, Status.QUEUED})
LIVE = frozenset({Status.PENDING, Status.QUEUED, Status.PREPARING, Status.ACTIVE})
TERMINAL = frozenset(Status) - LIVE


def check_transition(before: Status, after: Status) -> None:
    """Raises IllegalTransition unless the table has it. The same status twice is not a transition."""
    if after not in TRANSITIONS[before]:
        raise IllegalTransition(f"a reservation that is {before} cannot become {after}")
