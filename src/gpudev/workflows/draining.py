"""Draining: a node is closed for new work, and those who are still there are told. Nobody is thrown out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpudev.domain.cordon import Cordon, check_cordon_reason
from gpudev.domain.errors import Stale
from gpudev.domain.ids import ReservationId
from gpudev.domain.moments import format_utc_time
from gpudev.domain.reservations.reservation import Reservation
from gpudev.ports.clock import Clock
from gpudev.ports.cordons import CordonStore
from gpudev.ports.reservations import Change, NewEvent, ReservationStore, UnreleasedView

_NOTIFY_ATTEMPTS = 5
DescribeConsequence = Callable[[Reservation], str | None]
"""What will happen to somebody who stays, in words. None: nothing."""


def _no_consequence(_: Reservation) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class NodeDrain:
    cordons: CordonStore
    reservations: ReservationStore
    unreleased: UnreleasedView
    clock: Clock

    async def drain(
        self, node: str, by: str, reason: str, then: DescribeConsequence = _no_consequence
    ) -> Sequence[Reservation]:
        """Who is there. Doing it again tells them again. NotFound for a node that was never seen."""
        cordon = await self.cordons.cordon(node, by, check_cordon_reason(reason), now=self.clock.now())
        there = await self.reservations_on(node)
        for reservation in there:
            await self._notify(reservation.reservation_id, cordon, then)
        return there

    async def reservations_on(self, node: str) -> Sequence[Reservation]:
        """Also those that have ended and are being cleared away: until that is done, the node is not empty."""
        return [one for one in await self.unreleased.refresh() if any(share.node == node for share in one.shares)]

    async def _notify(self, reservation_id: ReservationId, cordon: Cordon, then: DescribeConsequence) -> None:
        for attempt in range(1, _NOTIFY_ATTEMPTS + 1):
            found = await self.reservations.find_reservation(reservation_id)
            if found is None or not found.status.holds_capacity:
                return  # it has ended meanwhile
            now = self.clock.now()
            message = _drain_message(found, cordon, then(found), now)
            change = Change(reservation_id, found.status, found.version, NewEvent("node_draining", message))
            try:
                await self.reservations.apply_change(change, now=now)
            except Stale:
                if attempt == _NOTIFY_ATTEMPTS:
                    raise
            else:
                await self.cordons.add_notice(reservation_id, message)
                return


def _drain_message(reservation: Reservation, cordon: Cordon, then: str | None, now: datetime) -> str:
    why = f" ({cordon.reason})" if cordon.reason else ""
    if then is not None:
        return f"node {cordon.node} is needed empty{why}: please save your work; {then}"
    end = reservation.planned_end()
    until = f"at the latest at {format_utc_time(end, now)}" if end else "when it ends"
    return f"node {cordon.node} is needed empty{why}: please save your work and cancel when you can, {until}"
