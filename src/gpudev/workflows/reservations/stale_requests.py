"""Looks after requests that a working processor does not: sends them again, and in the end gives them up."""

from dataclasses import dataclass, field
from typing import assert_never

from gpudev.domain.commands import Cause
from gpudev.domain.errors import Stale
from gpudev.domain.ids import short_id
from gpudev.planning.reservations.stale_requests import GiveUp, SendAgain, decide_neglected
from gpudev.ports.clock import Clock
from gpudev.ports.reconciling import LookStore
from gpudev.ports.reservations import ReservationStore
from gpudev.settings import Reconciling


@dataclass(slots=True)
class NeglectReport:
    sent_again: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class NeglectedRequests:
    reservations: ReservationStore
    looks: LookStore
    clock: Clock
    settings: Reconciling

    async def run(self, *, dry_run: bool = False) -> NeglectReport:
        report = NeglectReport()
        # The rows first: whoever is looked at in between is then not taken for neglected.
        waiting = await self.reservations.unreleased()
        looks, now = await self.looks.looks(), self.clock.now()
        for decision in decide_neglected(waiting, looks, now, self.settings.stale_request_after):
            try:
                if not dry_run:
                    cause = Cause.RESENT if isinstance(decision, SendAgain) else Cause.CANCELLED
                    await self.reservations.change(decision.change, now=now, cause=cause)
            except Stale:
                continue  # somebody has looked at it
            name = short_id(decision.change.reservation_id)
            match decision:
                case SendAgain():
                    report.sent_again.append(name)
                case GiveUp():
                    report.cancelled.append(name)
                case _:
                    assert_never(decision)
        return report
