"""Prioritising: an operator lets somebody who waits go before others, or after them."""

from dataclasses import dataclass

from gpudev.domain.access.users import User
from gpudev.domain.commands import MessageCause
from gpudev.domain.errors import Conflict, Forbidden, Invalid, Stale
from gpudev.domain.ids import short_id
from gpudev.domain.reservations.reservation import Reservation
from gpudev.ports.clock import Clock
from gpudev.ports.reservations import Change, NewEvent, ReservationStore
from gpudev.workflows.reservation_views import find_job, sees_everything

_PRIORITISE_ATTEMPTS = 5
_HIGHEST_PRIORITY = 100


@dataclass(frozen=True, slots=True)
class Prioritisation:
    reservations: ReservationStore
    clock: Clock

    async def prioritise(self, user: User, job_id: str, priority: int) -> Reservation:
        if not sees_everything(user):
            raise Forbidden("only operators may set priorities")
        if not -_HIGHEST_PRIORITY <= priority <= _HIGHEST_PRIORITY:
            raise Invalid(f"a priority is a number from -{_HIGHEST_PRIORITY} to {_HIGHEST_PRIORITY}", field="priority")
        for attempt in range(1, _PRIORITISE_ATTEMPTS + 1):
            found = await find_job(self.reservations, user, job_id)
            if not found.status.is_waiting:
                raise Conflict(f"only who waits has a priority; {short_id(found.reservation_id)} is {found.status}")
            if found.priority == priority:
                return found
            event = NewEvent("priority", f"{user.username} set its priority to {priority} (it was {found.priority})")
            change = Change(found.reservation_id, found.status, found.version, event, fields={"priority": priority})
            try:
                return await self.reservations.apply_change(
                    change, now=self.clock.now(), cause=MessageCause.PRIORITISED
                )
            except Stale:
                if attempt == _PRIORITISE_ATTEMPTS:
                    raise
        raise AssertionError("unreachable")
