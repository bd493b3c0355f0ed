"""Resends stale requests, and finally cancels them."""

from dataclasses import dataclass, field
from typing import assert_never

from gpudev.domain.errors import Stale
from gpudev.domain.ids import short_id
from gpudev.domain.queue import MessageCause
from gpudev.planning.reservations.stale_requests import CancelStaleRequest, ResendRequest, decide_stale_requests
from gpudev.ports.clock import Clock
from gpudev.ports.queue import PlanningRecordStore
from gpudev.ports.reservations import ReservationStore


@dataclass(slots=True)
class StaleRequestReport:
    sent_again: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StaleRequests:
    reservations: ReservationStore
    records: PlanningRecordStore
    clock: Clock

    async def run(self, *, dry_run: bool = False) -> StaleRequestReport:
        report = StaleRequestReport()
        # Rows first: a request examined in between is then not taken for stale.
        waiting = await self.reservations.unreleased()
        records, now = await self.records.load_planning_records(), self.clock.now()
        for decision in decide_stale_requests(waiting, records, now):
            try:
                if not dry_run:
                    cause = MessageCause.RESENT if isinstance(decision, ResendRequest) else MessageCause.CANCELLED
                    await self.reservations.apply_change(decision.change, now=now, cause=cause)
            except Stale:
                continue  # it has changed since
            name = short_id(decision.change.reservation_id)
            match decision:
                case ResendRequest():
                    report.sent_again.append(name)
                case CancelStaleRequest():
                    report.cancelled.append(name)
                case _:
                    assert_never(decision)
        return report
