"""Addons: collaborators and Jupyter of a dev server.

Writes the desired state with a line of history; the processor applies it. Keys of collaborators are checked before
anything is written.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from gpudev.domain.access.ssh_keys import check_github_user
from gpudev.domain.access.users import User
from gpudev.domain.errors import Conflict, Invalid, NotFound, Stale, Unavailable
from gpudev.domain.ids import short_id
from gpudev.domain.reservations.changes import Change, NewEvent, event_recorded
from gpudev.domain.reservations.reservation import Reservation
from gpudev.domain.sessions.addons import MAX_COLLABORATORS, Addons, Collaborator
from gpudev.ports.access import PublicKeySource
from gpudev.ports.clock import Clock
from gpudev.ports.reservations import ReservationStore
from gpudev.ports.sessions import AddonStore, JupyterSecrets
from gpudev.workflows.guarded import retry_on
from gpudev.workflows.reservation_views import find_job

_TOKEN_BYTES = 32


async def find_own_job(reservations: ReservationStore, user: User, job_id: str) -> Reservation:
    """As `find_job`, but for owners only: operators may end other users' reservations, not enter them."""
    found = await find_job(reservations, user, job_id)
    if found.user_id != user.user_id:
        raise NotFound(f"you have no reservation {job_id!r}")
    return found


@dataclass(frozen=True, slots=True)
class AddonChanges:
    reservations: ReservationStore
    addons: AddonStore
    keys: PublicKeySource
    clock: Clock
    new_key_pair: Callable[[], tuple[str, str]]
    """A new key pair (private, public), in OpenSSH format."""

    async def find_addons(self, user: User, job_id: str) -> tuple[Reservation, Addons | None]:
        found = await find_job(self.reservations, user, job_id)
        return found, await self.addons.find_addons(found.reservation_id)

    async def add_users(self, user: User, job_id: str, names: Sequence[str]) -> Addons:
        """Raises Invalid for a user without keys, Unavailable if GitHub does not answer; then no one is added."""
        found = await find_own_job(self.reservations, user, job_id)
        _check_not_ended(found)
        wanted = _check_names(names)
        keys = await asyncio.gather(*(self._keys_of(name) for name in wanted))
        now = self.clock.now()
        users = [Collaborator(name, tuple(own), user.username, now) for name, own in zip(wanted, keys, strict=True)]
        event = NewEvent("users", f"{user.username} added {', '.join(each.github_user for each in users)}")
        return await self._write(
            user, job_id, event, lambda change: self.addons.add_users(change, users, now=self.clock.now())
        )

    async def remove_user(self, user: User, job_id: str, name: str) -> Addons:
        """Raises NotFound if no such collaborator exists."""
        wanted = check_github_user(name).lower()
        found, current = await self.find_addons(user, job_id)
        _check_not_ended(found)
        if current is None or all(each.github_user != wanted for each in current.collaborators):
            raise NotFound(f"{name} has no access to {short_id(found.reservation_id)}")
        event = NewEvent("users", f"{user.username} removed {wanted}")
        return await self._write(
            user, job_id, event, lambda change: self.addons.remove_user(change, wanted, now=self.clock.now())
        )

    async def enable_jupyter(self, user: User, job_id: str) -> Addons:
        """Idempotent while it starts or runs. After a failure it is started again."""
        found = await find_own_job(self.reservations, user, job_id)
        _check_not_ended(found)
        current = await self.addons.find_addons(found.reservation_id)
        if current is not None and current.jupyter is not None and current.jupyter.status.reason is None:
            return current
        private, public = self.new_key_pair()
        made = JupyterSecrets(secrets.token_urlsafe(_TOKEN_BYTES), public, private)
        event = NewEvent("jupyter", f"{user.username} enabled Jupyter")
        return await self._write(
            user, job_id, event, lambda change: self.addons.enable_jupyter(change, made, now=self.clock.now())
        )

    async def disable_jupyter(self, user: User, job_id: str) -> Addons | None:
        found, current = await self.find_addons(user, job_id)
        if current is None or current.jupyter is None:
            return current
        _check_not_ended(found)
        event = NewEvent("jupyter", f"{user.username} disabled Jupyter")
        return await self._write(
            user, job_id, event, lambda change: self.addons.disable_jupyter(change, now=self.clock.now())
        )

    async def _keys_of(self, name: str) -> Sequence[str]:
        try:
            return await self.keys.public_keys(name)
        except Invalid as error:
            raise Invalid(_without_key_hint(str(error)), field="github_users") from error
        except Unavailable as error:
            raise Unavailable(_without_key_hint(str(error))) from error

    @retry_on(Stale)
    async def _write(
        self, user: User, job_id: str, event: NewEvent, write: Callable[[Change], Awaitable[Addons]]
    ) -> Addons:
        found = await find_job(self.reservations, user, job_id)
        _check_not_ended(found)
        return await write(event_recorded(found, event.kind, event.message))


def _check_not_ended(reservation: Reservation) -> None:
    if reservation.status.is_terminal:
        raise Conflict(f"reservation {short_id(reservation.reservation_id)} has ended: it is {reservation.status}")


def _check_names(names: Sequence[str]) -> list[str]:
    if not 1 <= len(names) <= MAX_COLLABORATORS:
        raise Invalid(f"name 1 to {MAX_COLLABORATORS} GitHub users", field="github_users")
    try:
        return list(dict.fromkeys(check_github_user(name).lower() for name in names))
    except Invalid as error:
        raise Invalid(str(error), field="github_users") from error


def _without_key_hint(message: str) -> str:
    """Keys cannot be sent here."""
    return message.replace(", or send ssh_public_keys", "")
