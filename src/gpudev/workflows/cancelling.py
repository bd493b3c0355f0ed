"""Cancelling: the end is written at once, whatever the reservation was doing; taking down what it had comes after."""

from dataclasses import dataclass

from gpudev.domain.access.users import User
from gpudev.domain.commands import MessageCause
from gpudev.domain.errors import Conflict, Stale
from gpudev.domain.ids import short_id
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation
from gpudev.ports.clock import Clock
from gpudev.ports.reservations import Change, NewEvent, ReservationStore
from gpudev.workflows.reservation_views import find_job

_CANCEL_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Cancellation:
    reservations: ReservationStore
    clock: Clock

    async def cancel(self, user: User, job_id: str) -> Reservation:
        """Cancelling twice is fine; what ended otherwise is a Conflict that names its status."""
        for attempt in range(1, _CANCEL_ATTEMPTS + 1):
            found = await find_job(self.reservations, user, job_id)
            if found.status is Status.CANCELLED:
                return found
            if found.status.is_terminal:
                raise Conflict(f"reservation {short_id(found.reservation_id)} has already ended: it is {found.status}")
            try:
                return await self._end(user, found)
            except Stale:
                # The processor moved it between our look and our write.
                if attempt == _CANCEL_ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    async def _end(self, user: User, found: Reservation) -> Reservation:
        now = self.clock.now()
        change = Change(
            reservation_id=found.reservation_id,
            status=found.status,
            version=found.version,
            event=NewEvent("cancelled", f"cancelled by {user.username}"),
            to=Status.CANCELLED,
            fields={"cancelled_at": now, "step": None},
            # One that waits and holds nothing has nothing that could outlive it: its disk is free this moment.
            release=found.status.is_waiting and not found.is_being_requeued,
        )
        return await self.reservations.apply_change(change, now=now, cause=MessageCause.CANCELLED)
