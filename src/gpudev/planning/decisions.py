"""Decisions of one planning cycle: what to write and which effects to run."""

from dataclasses import dataclass, field
from datetime import datetime

from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import Estimate, EstimateRecord
from gpudev.domain.reservations.changes import Change
from gpudev.domain.reservations.reservation import Reservation


@dataclass(slots=True)
class Decisions:
    """What to write and what to do. Effects name reservations as they were read; each can run twice."""

    changes: list[Change] = field(default_factory=list)
    updates: dict[ReservationId, Estimate] = field(default_factory=dict)
    """Where those stand whose rows are no longer near enough to the plan."""
    estimates: list[EstimateRecord] = field(default_factory=list)
    """Estimates to be kept, to be compared with what happens."""
    launches: list[Reservation] = field(default_factory=list)
    starts: list[Reservation] = field(default_factory=list)
    """To be launched as soon as the change that places them is written."""
    teardowns: list[Reservation] = field(default_factory=list)
    withdrawals: list[Reservation] = field(default_factory=list)
    """Those that wait again, with something left in a place that was refused."""
    messages: list[tuple[ReservationId, str]] = field(default_factory=list)
    """To be shown in the dev server's terminals, once the change that says so is written."""
    next_at: datetime | None = None
    """When time alone changes something."""

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
