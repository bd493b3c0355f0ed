"""Jupyter in a browser: a link that is good once, given to whom a reservation belongs, becomes a browser's own secret,
which is checked with every request and while a connection lasts. What goes to and fro is not known here."""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from gpudev.domain.access.users import ApiKey
from gpudev.domain.errors import Conflict, Forbidden, NotFound
from gpudev.domain.ids import ReservationId, short_id
from gpudev.domain.reservations.reservation import Connection
from gpudev.domain.sessions.addons import JupyterState
from gpudev.domain.sessions.grants import Close, Grant, Purpose
from gpudev.planning import sessions as rules
from gpudev.ports.clock import Clock
from gpudev.ports.proxying import ProxyTokenStore
from gpudev.ports.reservations import ReservationStore
from gpudev.ports.sessions import InteriorView, JupyterKeys, JupyterSecrets
from gpudev.workflows.sessions.addons import find_own_job

_RANDOM_BYTES = 32
_HOW = "`gpu-dev jupyter open` gives its owner a link"


class NotLetIn(Forbidden):
    """A link or a browser's secret that is none, or no longer."""


class ForAnother(NotFound):
    """One that is good, for something else than was asked for."""


@dataclass(frozen=True, slots=True)
class Issued:
    """Shown once."""

    secret: str
    reservation_id: ReservationId
    ends_at: datetime


@dataclass(frozen=True, slots=True)
class Guest:
    """Somebody who may go to Jupyter, and the way there."""

    grant: Grant
    username: str
    connection: Connection
    secrets: JupyterSecrets


@dataclass(frozen=True, slots=True)
class Linking:
    """For the API."""

    reservations: ReservationStore
    interiors: InteriorView
    tokens: ProxyTokenStore
    clock: Clock
    ttl: timedelta

    async def issue(self, key: ApiKey, job_id: str) -> Issued:
        """Raises NotFound for what is not the caller's own, Conflict where there is nothing to open."""
        found = await find_own_job(self.reservations, key.user, job_id)
        rules.connection_of(found.reservation_id, found.status, found.connection)
        interior = await self.interiors.find(found.reservation_id)
        jupyter = None if interior is None else interior.jupyter
        short = short_id(found.reservation_id)
        if jupyter is None:
            raise Conflict(f"Jupyter is not enabled there: `gpu-dev jupyter enable {short}`")
        if jupyter.seen.state is JupyterState.FAILED:
            raise Conflict(f"Jupyter does not run: {jupyter.seen.reason}")
        now = self.clock.now()
        issued = Issued(secrets.token_urlsafe(_RANDOM_BYTES), found.reservation_id, now + self.ttl)
        grant = Grant(found.reservation_id, key.user.user_id, key.key_id)
        await self.tokens.keep(_digest(issued.secret), grant, ends_at=issued.ends_at, now=now, purpose=Purpose.LINK)
        return issued


@dataclass(frozen=True, slots=True)
class Browsing:
    """For whoever stands between browsers and Jupyter."""

    tokens: ProxyTokenStore
    keys: JupyterKeys
    clock: Clock
    session_ttl: timedelta

    async def enter(self, link: str, asked: str) -> tuple[Issued, Guest]:
        """A browser's own secret for a link's. Raises as `admit`."""
        found = await self.tokens.take(_digest(link), Purpose.LINK)
        if found is None:
            raise NotLetIn(f"this link is no good (any more): each opens once, and soon; {_HOW}")
        grant, ends_at = found
        now = self.clock.now()
        guest = await self._check(grant, ends_at, asked, now)
        issued = Issued(secrets.token_urlsafe(_RANDOM_BYTES), grant.reservation_id, now + self.session_ttl)
        digest = _digest(issued.secret)
        await self.tokens.keep(digest, grant, ends_at=issued.ends_at, now=now, purpose=Purpose.BROWSER)
        return issued, guest

    async def admit(self, secret: str | None, asked: str) -> Guest:
        """Raises NotLetIn without a secret that is good, ForAnother for one that is good for something else, Forbidden
        where its owner may no longer go there, Conflict where nothing runs."""
        found = None if secret is None else await self.tokens.find(_digest(secret), Purpose.BROWSER)
        if found is None:
            raise NotLetIn(f"this browser has not been let in to this Jupyter: {_HOW}")
        return await self._check(*found, asked, self.clock.now())

    async def _check(self, grant: Grant, ends_at: datetime, asked: str, now: datetime) -> Guest:
        if str(grant.reservation_id) != asked:
            raise ForAnother("there is no such Jupyter")
        standing = (await self.tokens.standings([grant])).get(grant)
        if standing is None or now >= ends_at:
            raise Forbidden(f"this browser was let in too long ago: {_HOW}")
        ending = rules.why_ended(grant, standing)
        if ending is not None:
            raise (Forbidden if ending.close is Close.ACCESS_ENDED else Conflict)(ending.reason)
        connection = rules.connection_of(grant.reservation_id, standing.status, standing.connection)
        kept = await self.keys.find_secrets(grant.reservation_id)
        if kept is None:
            raise Conflict("Jupyter is not enabled there (any more)")
        return Guest(grant, standing.username or "", connection, kept)


def whole_id(text: str) -> str | None:
    """As ids are written; None for what is none."""
    try:
        return str(UUID(text))
    except ValueError:
        return None


def _digest(secret: str) -> bytes:
    """A plain hash is enough: the secret holds 256 random bits, so there is nothing to guess."""
    return hashlib.sha256(secret.encode()).digest()
