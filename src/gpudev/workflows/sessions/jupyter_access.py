"""Jupyter access: exchanges a one-time link for a browser session and checks each of its requests."""

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
    """An invalid or expired link or browser secret."""


class WrongJupyter(NotFound):
    """A valid secret for another Jupyter."""


@dataclass(frozen=True, slots=True)
class IssuedSecret:
    """Shown once."""

    secret: str
    reservation_id: ReservationId
    ends_at: datetime


@dataclass(frozen=True, slots=True)
class AdmittedBrowser:
    """A permitted user, and the connection to Jupyter."""

    grant: Grant
    username: str
    connection: SshEndpoint
    secrets: JupyterSecrets


@dataclass(frozen=True, slots=True)
class JupyterLinks:
    """Used by the API."""

    reservations: ReservationStore
    addons: AddonView
    tokens: ProxyTokenStore
    clock: Clock
    ttl: timedelta

    async def issue_link(self, key: ApiKey, job_id: str) -> IssuedSecret:
        """Raises NotFound unless it is the caller's own, Conflict if Jupyter does not run."""
        found = await find_own_job(self.reservations, key.user, job_id)
        rules.get_connection(found.reservation_id, found.status, found.connection)
        addons = await self.addons.find_addons(found.reservation_id)
        jupyter = None if addons is None else addons.jupyter
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
    """Used by the proxy between browsers and Jupyter."""

    tokens: ProxyTokenStore
    keys: JupyterSecretStore
    clock: Clock
    session_ttl: timedelta

    async def open_session(self, link: str, reservation_id: str) -> tuple[IssuedSecret, AdmittedBrowser]:
        """Exchanges a link's secret for a browser's. Raises as `admit_browser`; then the link stays valid."""
        denied = JupyterAccessDenied(f"invalid or expired link: each opens once, within minutes; {_LINK_HINT}")
        found = await self.tokens.find_token(_digest(link), TokenPurpose.LINK)
        if found is None:
            raise denied
        grant, ends_at = found
        now = self.clock.now()
        admitted = await self._check(grant, ends_at, reservation_id, now)
        if await self.tokens.consume_token(_digest(link), TokenPurpose.LINK) is None:
            raise denied  # another browser was faster
        issued = IssuedSecret(secrets.token_urlsafe(_RANDOM_BYTES), grant.reservation_id, now + self.session_ttl)
        digest = _digest(issued.secret)
        await self.tokens.save_token(digest, grant, ends_at=issued.ends_at, now=now, purpose=TokenPurpose.BROWSER)
        return issued, admitted

    async def admit_browser(self, secret: str | None, reservation_id: str) -> AdmittedBrowser:
        """Raises JupyterAccessDenied without a valid secret, WrongJupyter for the secret of another one, Forbidden if
        the access has ended, Conflict if Jupyter does not run."""
        found = None if secret is None else await self.tokens.find_token(_digest(secret), TokenPurpose.BROWSER)
        if found is None:
            raise JupyterAccessDenied(f"this browser has no access to this Jupyter: {_LINK_HINT}")
        return await self._check(*found, reservation_id, self.clock.now())

    async def _check(self, grant: Grant, ends_at: datetime, reservation_id: str, now: datetime) -> AdmittedBrowser:
        if str(grant.reservation_id) != reservation_id:
            raise WrongJupyter("Jupyter not found")
        grant_state = (await self.tokens.load_grant_states([grant])).get(grant)
        if grant_state is None or now >= ends_at:
            raise Forbidden(f"this browser's access has expired: {_LINK_HINT}")
        ending = rules.find_session_end(grant, grant_state)
        if ending is not None:
            raise (Forbidden if ending.code is CloseCode.ACCESS_ENDED else Conflict)(ending.reason)
        connection = rules.get_connection(grant.reservation_id, grant_state.status, grant_state.connection)
        kept = await self.keys.find_secrets(grant.reservation_id)
        if kept is None:
            raise Conflict("Jupyter is not enabled there")
        return AdmittedBrowser(grant, grant_state.username or "", connection, kept)


def parse_whole_id(text: str) -> str | None:
    """None: not a full id in its usual form."""
    try:
        return str(UUID(text))
    except ValueError:
        return None


def _digest(secret: str) -> bytes:
    """A plain hash is enough: the secret has 256 random bits."""
    return hashlib.sha256(secret.encode()).digest()
