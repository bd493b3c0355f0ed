"""SSH tokens: issued to a reservation's owner, checked when a session opens and while it lasts."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from gpudev.domain.access.users import ApiKey
from gpudev.domain.errors import Unauthenticated
from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations.reservation import SshEndpoint
from gpudev.domain.sessions.grants import TOKEN_PREFIX, Grant, SessionEnd
from gpudev.planning import sessions as rules
from gpudev.ports.clock import Clock
from gpudev.ports.reservations import ReservationStore
from gpudev.ports.sessions import ProxyTokenStore
from gpudev.workflows.reservation_views import find_job

_RANDOM_BYTES = 32
SSH_TOKEN_TTL = timedelta(seconds=60)
"""How long a token opens sessions. Clients use it at once and request another for the next session."""
GRANT_CHECK_EVERY = timedelta(milliseconds=400)
"""How often open sessions are checked: they must end within a second of a revocation."""


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """Shown once."""

    secret: str
    reservation_id: ReservationId
    ends_at: datetime
    """Until then it opens sessions; sessions continue after it."""


@dataclass(frozen=True, slots=True)
class AdmittedSession:
    grant: Grant
    username: str
    connection: SshEndpoint


@dataclass(frozen=True, slots=True)
class SshTokens:
    reservations: ReservationStore
    tokens: ProxyTokenStore
    clock: Clock
    ttl: timedelta = SSH_TOKEN_TTL

    async def issue_token(self, key: ApiKey, job_id: str) -> IssuedToken:
        """Raises NotFound unless it is the caller's own, Conflict unless it is active."""
        found = await find_job(self.reservations, key.user, job_id)
        rules.get_connection(found.reservation_id, found.status, found.connection)
        now = self.clock.now()
        issued = IssuedToken(TOKEN_PREFIX + secrets.token_urlsafe(_RANDOM_BYTES), found.reservation_id, now + self.ttl)
        grant = Grant(found.reservation_id, key.user.user_id, key.key_id)
        await self.tokens.save_token(_digest(issued.secret), grant, ends_at=issued.ends_at, now=now)
        return issued

    async def admit_session(self, secret: str, reservation_id: str) -> AdmittedSession:
        """A session to the reservation with this full id. Raises Unauthenticated, Conflict and Unavailable."""
        found = await self.tokens.find_token(_digest(secret)) if secret.startswith(TOKEN_PREFIX) else None
        if found is None:
            raise Unauthenticated("invalid token (expected one of POST /v1/jobs/{job_id}/proxy-token)")
        grant, ends_at = found
        grant_state = (await self.tokens.load_grant_states([grant])).get(grant)
        connection = rules.admit_session(_parse_id(reservation_id), grant, ends_at, grant_state, self.clock.now())
        assert grant_state is not None
        return AdmittedSession(grant, grant_state.username or "", connection)

    async def find_ended(self, grants: Sequence[Grant]) -> dict[Grant, SessionEnd]:
        """The grants whose sessions must end now, with the reasons."""
        grant_states = await self.tokens.load_grant_states(grants)
        found = ((grant, rules.find_session_end(grant, grant_state)) for grant, grant_state in grant_states.items())
        return {grant: ending for grant, ending in found if ending is not None}


def _digest(secret: str) -> bytes:
    """A plain hash is enough: the secret has 256 random bits."""
    return hashlib.sha256(secret.encode()).digest()


def _parse_id(text: str) -> ReservationId:
    """None: not a full id."""
    try:
        return ReservationId(UUID(text))
    except ValueError:
        return ReservationId(UUID(int=0))
