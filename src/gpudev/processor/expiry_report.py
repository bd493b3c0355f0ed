"""What one run of `expire` did, or would do."""

from collections.abc import Collection
from dataclasses import dataclass, field

from gpudev.domain.ids import ReservationId, short_id
from gpudev.planning.decisions import Decisions


@dataclass(slots=True)
class ExpiryReport:
    changes: list[str] = field(default_factory=list)
    """One line per reservation."""
    torn_down: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    """Dev servers without a reservation, still within the grace period."""
    removed: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    """Ended, and not torn down yet."""
    errors: list[str] = field(default_factory=list)

    @property
    def succeeded(self) -> bool:
        return not self.unfinished and not self.errors

    def add_decisions(self, decisions: Decisions, done: Collection[ReservationId]) -> None:
        for change in decisions.changes:
            if change.reservation_id in done and change.event is not None:
                self.changes.append(f"{short_id(change.reservation_id)}: {change.event.message}")
        names = [*self.torn_down, *(short_id(row.reservation_id) for row in decisions.teardowns)]
        self.torn_down = [*dict.fromkeys(names)]
