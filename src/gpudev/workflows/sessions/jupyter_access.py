"""Jupyter access: exchanges a one-time link for a browser session, and checks every request of it."""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from gpudev.domain.access.users import ApiKey
from gpudev.domain.errors import Conflict, Forbidden, NotFound
from gpudev.domain.ids import ReservationId, short_id
from gpudev.domain.reservations.reservation import SshEndpoint
from gpudev.domain.sessions.addons import JupyterState
from gpudev.domain.sessions.grants import CloseCode, Grant, TokenPurpose
from gpudev.planning import sessions as rules
from gpudev.ports.clock import Clock
from gpudev.ports.reservations import ReservationStore
from gpudev.ports.sessions import AddonView, JupyterSecrets, JupyterSecretStore, ProxyTokenStore
from gpudev.workflows.sessions.addons import find_own_job

_RANDOM_BYTES = 32
_LINK_HINT = "`gpu-dev jupyter open` gives its owner a link"


class JupyterAccessDenied(Forbidden):
    """A link or a browser's secret that is none, or no longer."""


class WrongJupyter(NotFound):
    """One that is good, for something else than was asked for."""


@dataclass(frozen=True, slots=True)
class IssuedSecret:
    """Shown once."""

    secret: str
    reservation_id: ReservationId
    ends_at: datetime


@dataclass(frozen=True, slots=True)
class AdmittedBrowser:
    """Somebody who may go to Jupyter, and the way there."""

    grant: Grant
    username: str
    connection: SshEndpoint
    secrets: JupyterSecrets


@dataclass(frozen=True, slots=True)
class JupyterLinks:
    """For the API."""

    reservations: ReservationStore
    addons: AddonView
    tokens: ProxyTokenStore
    clock: Clock
    ttl: timedelta

    async def issue_link(self, key: ApiKey, job_id: str) -> IssuedSecret:
        """Raises NotFound for what is not the caller's own, Conflict where there is nothing to open."""
        found = await find_own_job(self.reservations, key.user, job_id)
        rules.get_connection(found.reservation_id, found.status, found.connection)
        interior = await self.addons.find_addons(found.reservation_id)
        jupyter = None if interior is None else interior.jupyter
        short = short_id(found.reservation_id)
        if jupyter is None:
            raise Conflict(f"Jupyter is not enabled there: `gpu-dev jupyter enable {short}`")
        if jupyter.status.state is JupyterState.FAILED:
            raise Conflict(f"Jupyter does not run: {jupyter.status.reason}")
        now = self.clock.now()
        issued = IssuedSecret(secrets.token_urlsafe(_RANDOM_BYTES), found.reservation_id, now + self.ttl)
        grant = Grant(found.reservation_id, key.user.user_id, key.key_id)
        await self.tokens.save_token(
            _digest(issued.secret), grant, ends_at=issued.ends_at, now=now, purpose=TokenPurpose.LINK
        )
        return issued


@dataclass(frozen=True, slots=True)
class BrowserSessions:
    """For whoever stands between browsers and Jupyter."""

    tokens: ProxyTokenStore
    keys: JupyterSecretStore
    clock: Clock
    session_ttl: timedelta

    async def open_session(self, link: str, asked: str) -> tuple[IssuedSecret, AdmittedBrowser]:
        """A browser's own secret for a link's. Raises as `admit`."""
        found = await self.tokens.consume_token(_digest(link), TokenPurpose.LINK)
        if found is None:
            raise JupyterAccessDenied(f"invalid or expired link: each opens once, within minutes; {_LINK_HINT}")
        grant, ends_at = found
        now = self.clock.now()
        guest = await self._check(grant, ends_at, asked, now)
        issued = IssuedSecret(secrets.token_urlsafe(_RANDOM_BYTES), grant.reservation_id, now + self.session_ttl)
        digest = _digest(issued.secret)
        await self.tokens.save_token(digest, grant, ends_at=issued.ends_at, now=now, purpose=TokenPurpose.BROWSER)
        return issued, guest

    async def admit_browser(self, secret: str | None, asked: str) -> AdmittedBrowser:
        """Raises NotLetIn without a secret that is good, ForAnother for one that is good for something else, Forbidden
        where its owner may no longer go there, Conflict where nothing runs."""
        found = None if secret is None else await self.tokens.find_token(_digest(secret), TokenPurpose.BROWSER)
        if found is None:
            raise JupyterAccessDenied(f"this browser has not been let in to this Jupyter: {_LINK_HINT}")
        return await self._check(*found, asked, self.clock.now())

    async def _check(self, grant: Grant, ends_at: datetime, asked: str, now: datetime) -> AdmittedBrowser:
        if str(grant.reservation_id) != asked:
            raise WrongJupyter("Jupyter not found")
        standing = (await self.tokens.load_grant_states([grant])).get(grant)
        if standing is None or now >= ends_at:
            raise Forbidden(f"this browser was let in too long ago: {_LINK_HINT}")
        ending = rules.find_session_end(grant, standing)
        if ending is not None:
            raise (Forbidden if ending.code is CloseCode.ACCESS_ENDED else Conflict)(ending.reason)
        connection = rules.get_connection(grant.reservation_id, standing.status, standing.connection)
        kept = await self.keys.find_secrets(grant.reservation_id)
        if kept is None:
            raise Conflict("Jupyter is not enabled there (any more)")
        return AdmittedBrowser(grant, standing.username or "", connection, kept)


def parse_whole_id(text: str) -> str | None:
    """As ids are written; None for what is none."""
    try:
        return str(UUID(text))
    except ValueError:
        return None


def _digest(secret: str) -> bytes:
    """A plain hash is enough: the secret holds 256 random bits, so there is nothing to guess."""
    return hashlib.sha256(secret.encode()).digest()
