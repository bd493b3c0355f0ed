"""Changing the inside of a dev server: who else may log in, and Jupyter. What is wanted is written down with a line of
history, and the processor makes it true; who may log in is checked before anything is written."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from gpudev.domain.access.ssh_keys import check_github_user
from gpudev.domain.access.users import User
from gpudev.domain.errors import Conflict, Invalid, NotFound, Stale, Unavailable
from gpudev.domain.ids import short_id
from gpudev.domain.reservations.reservation import Reservation
from gpudev.domain.sessions.addons import MOST_USERS, ExtraUser, Interior
from gpudev.ports.access import KeySource
from gpudev.ports.clock import Clock
from gpudev.ports.reservations import Change, NewEvent, ReservationStore
from gpudev.ports.sessions import InteriorStore, JupyterSecrets
from gpudev.workflows.reservation_views import find_job

_ATTEMPTS = 5
_TOKEN_BYTES = 32


async def find_own_job(reservations: ReservationStore, user: User, job_id: str) -> Reservation:
    """As `find_job`, but also to operators what is another's is not there: they may end it, not enter it."""
    found = await find_job(reservations, user, job_id)
    if found.user_id != user.user_id:
        raise NotFound(f"you have no reservation {job_id!r}")
    return found


@dataclass(frozen=True, slots=True)
class Furnishing:
    reservations: ReservationStore
    interiors: InteriorStore
    keys: KeySource
    clock: Clock
    new_key_pair: Callable[[], tuple[str, str]]
    """A private key and its public half, in OpenSSH's forms."""

    async def interior(self, user: User, job_id: str) -> tuple[Reservation, Interior | None]:
        found = await find_job(self.reservations, user, job_id)
        return found, await self.interiors.find(found.reservation_id)

    async def add_users(self, user: User, job_id: str, names: Sequence[str]) -> Interior:
        """Raises Invalid for who has no keys, Unavailable when GitHub does not answer; then nobody is added."""
        found = await find_own_job(self.reservations, user, job_id)
        _check_lives(found)
        wanted = _check_names(names)
        keys = await asyncio.gather(*(self._keys_of(name) for name in wanted))
        now = self.clock.now()
        users = [ExtraUser(name, tuple(own), user.username, now) for name, own in zip(wanted, keys, strict=True)]
        event = NewEvent("users", f"{user.username} lets in {', '.join(one.github_user for one in users)}")
        return await self._write(
            user, job_id, event, lambda change: self.interiors.add_users(change, users, now=self.clock.now())
        )

    async def remove_user(self, user: User, job_id: str, name: str) -> Interior:
        """Removing twice is fine as long as somebody of that name was ever there to be removed."""
        wanted = check_github_user(name).lower()
        found, interior = await self.interior(user, job_id)
        _check_lives(found)
        if interior is None or all(one.github_user != wanted for one in interior.users):
            raise NotFound(f"{name} was not let in to {short_id(found.reservation_id)} (or is removed already)")
        event = NewEvent("users", f"{user.username} removed {wanted}")
        return await self._write(
            user, job_id, event, lambda change: self.interiors.remove_user(change, wanted, now=self.clock.now())
        )

    async def enable_jupyter(self, user: User, job_id: str) -> Interior:
        """Again while it runs or starts: nothing is changed. Again after it failed: it is tried anew."""
        found = await find_own_job(self.reservations, user, job_id)
        _check_lives(found)
        interior = await self.interiors.find(found.reservation_id)
        if interior is not None and interior.jupyter is not None and interior.jupyter.seen.reason is None:
            return interior
        private, public = self.new_key_pair()
        made = JupyterSecrets(secrets.token_urlsafe(_TOKEN_BYTES), public, private)
        event = NewEvent("jupyter", f"{user.username} enabled Jupyter")
        return await self._write(
            user, job_id, event, lambda change: self.interiors.want_jupyter(change, made, now=self.clock.now())
        )

    async def disable_jupyter(self, user: User, job_id: str) -> Interior | None:
        found, interior = await self.interior(user, job_id)
        if interior is None or interior.jupyter is None:
            return interior
        _check_lives(found)
        event = NewEvent("jupyter", f"{user.username} disabled Jupyter")
        return await self._write(
            user, job_id, event, lambda change: self.interiors.drop_jupyter(change, now=self.clock.now())
        )

    async def _keys_of(self, name: str) -> Sequence[str]:
        try:
            return await self.keys.public_keys(name)
        except Invalid as error:
            raise Invalid(_without_other_way_out(str(error)), field="github_users") from error
        except Unavailable as error:
            raise Unavailable(_without_other_way_out(str(error))) from error

    async def _write(
        self, user: User, job_id: str, event: NewEvent, write: Callable[[Change], Awaitable[Interior]]
    ) -> Interior:
        for attempt in range(1, _ATTEMPTS + 1):
            found = await find_job(self.reservations, user, job_id)
            _check_lives(found)
            try:
                return await write(Change(found.reservation_id, found.status, found.version, event))
            except Stale:
                # The processor moved it between our look and our write.
                if attempt == _ATTEMPTS:
                    raise
        raise AssertionError("unreachable")


def _check_lives(reservation: Reservation) -> None:
    if reservation.status.is_terminal:
        raise Conflict(f"reservation {short_id(reservation.reservation_id)} has ended: it is {reservation.status}")


def _check_names(names: Sequence[str]) -> list[str]:
    if not 1 <= len(names) <= MOST_USERS:
        raise Invalid(f"name 1 to {MOST_USERS} GitHub users", field="github_users")
    try:
        return list(dict.fromkeys(check_github_user(name).lower() for name in names))
    except Invalid as error:
        raise Invalid(str(error), field="github_users") from error


def _without_other_way_out(sentence: str) -> str:
    """Here nobody can send keys instead."""
    return sentence.replace(", or send ssh_public_keys", "")
