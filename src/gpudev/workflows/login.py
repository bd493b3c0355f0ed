"""Login: a person whom a provider identified becomes a user and gets a key that expires.

All login methods end here; only the provider knows how it identified the person.
"""

from dataclasses import dataclass
from datetime import timedelta

from gpudev.domain.access.users import IssuedKey, User, check_username
from gpudev.domain.errors import Forbidden, Invalid, Unauthenticated
from gpudev.ports.access import INVITATION_PROVIDER, AccountStore, InvitationStore, Person, UserStore
from gpudev.ports.clock import Clock


@dataclass(frozen=True, slots=True)
class LoginResult:
    user: User
    key: IssuedKey


@dataclass(frozen=True, slots=True)
class Login:
    accounts: AccountStore
    users: UserStore
    clock: Clock
    ttl: timedelta | None

    async def log_in(self, person: Person, came_from: str | None) -> LoginResult:
        """Raises Forbidden if this person may not log in."""
        try:
            check_username(person.username)
        except Invalid as error:
            raise Forbidden(f"you cannot log in under this name: {error}") from error
        user = await self.accounts.enrol(person, came_from=came_from, now=self.clock.now())
        key = await self.users.issue_key(user.user_id, self.ttl, f"{person.provider} login")
        return LoginResult(user, key)


# Login with an invitation.


@dataclass(frozen=True, slots=True)
class InvitationLogin:
    """An identity provider: its proof is the secret of a link."""

    invitations: InvitationStore
    clock: Clock

    async def identify(self, proof: str) -> Person:
        invitation = await self.invitations.accept(proof, now=self.clock.now())
        if invitation is None:
            # Used, revoked, expired or unknown: callers must not learn which.
            raise Unauthenticated("invalid or expired invitation: ask for a new one")
        # The inviting operator vouches for the person; only the name is known.
        return Person(invitation.username, INVITATION_PROVIDER, invitation.username.lower(), role=invitation.role)
