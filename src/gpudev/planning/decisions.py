"""Decisions of one planning cycle: what to write and which effects to run."""

from dataclasses import dataclass, field
from datetime import datetime

from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import Estimate, EstimateRecord
from gpudev.domain.reservations.changes import Change
from gpudev.domain.reservations.reservation import Reservation


@dataclass(slots=True)
class Decisions:
    """Changes to write and effects to run. Effects carry reservations as they were read; each can run twice."""

    changes: list[Change] = field(default_factory=list)
    updates: dict[ReservationId, Estimate] = field(default_factory=dict)
    """New estimates, for rows that differ materially from the plan."""
    estimates: list[EstimateRecord] = field(default_factory=list)
    """Estimates to record, for comparison with actual starts."""
    launches: list[Reservation] = field(default_factory=list)
    starts: list[Reservation] = field(default_factory=list)
    """To launch once the change that places them is written."""
    teardowns: list[Reservation] = field(default_factory=list)
    withdrawals: list[Reservation] = field(default_factory=list)
    """Requeued ones whose rejected placement is not torn down yet."""
    messages: list[tuple[ReservationId, str]] = field(default_factory=list)
    """To show in the dev server's terminals, once the corresponding change is written."""
    next_at: datetime | None = None
    """When the passage of time alone changes a decision."""

    def add(self, other: "Decisions") -> None:
        self.changes += other.changes
        self.updates |= other.updates
        self.estimates += other.estimates
        self.launches += other.launches
        self.starts += other.starts
        self.teardowns += other.teardowns
        self.withdrawals += other.withdrawals
        self.messages += other.messages
        self.recheck_at(other.next_at)

    def recheck_at(self, at: datetime | None) -> None:
        if at is not None and (self.next_at is None or at < self.next_at):
            self.next_at = at
