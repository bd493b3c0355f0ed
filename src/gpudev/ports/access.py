"""Who is asking, who vouches for them, and which public keys may log in for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from gpudev.domain.access.users import ApiKey, Role, User

_Proof_contra = TypeVar("_Proof_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody whom an identity provider has just vouched for."""

    username: str
    provider: str
    """Which kind of provider: "aws", "oidc", "invitation"."""
    subject: str
    """The provider's own lasting name for them (account and role session, issuer and subject). A user name that is
    bound to one subject is never given to another."""
    email: str | None = None
    role: Role | None = None
    """What the provider's groups say. None: it does not say; what is recorded here stands."""


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A request to AWS as its sender signed it: a stranger's words, until they are checked."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: str


class IdentityProvider(Protocol[_Proof_contra]):
    """Turns what a stranger brings along (a signed request, a token) into a person."""

    async def identify(self, proof: _Proof_contra) -> Person:
        """Raises Unauthenticated when nothing is proven, Forbidden when somebody is proven who may not come in,
        Unavailable when the provider does not answer."""
        ...


class AccountStore(Protocol):
    async def enrol(self, person: Person, *, came_from: str | None, now: datetime) -> User:
        """The user this person is: the one bound to their subject, else a new one. Their role is set to what the
        provider says, if it says one; only the last active admin stays one whatever it says. Raises Forbidden
        when the user is disabled, or when the name (in whatever case) is somebody else's."""
        ...

    async def expect_login(self, username: str, provider: str) -> None:
        """Let whom this provider next calls by this name become this user, who was made here. NotFound when there is
        no such user, Conflict when it is bound to somebody already."""
        ...


@dataclass(frozen=True, slots=True)
class Nonce:
    value: str
    expires_at: datetime


class NonceStore(Protocol):
    """Nonces that are good once, however many API processes there are."""

    async def issue(self, ttl: timedelta, *, now: datetime) -> Nonce:
        """Raises LimitReached while too many are unspent."""
        ...

    async def spend(self, value: str, *, now: datetime) -> bool:
        """Whether it was one of ours, unspent and in time. It is none any more."""
        ...


class KeyAuthenticator(Protocol):
    async def authenticate(self, secret: str) -> ApiKey:
        """Raises Unauthenticated."""
        ...


class PublicKeySource(Protocol):
    async def public_keys(self, github_user: str) -> Sequence[str]:
        """The keys GitHub publishes for a user. Raises Invalid when there are none, Unavailable when GitHub
        does not answer."""
        ...
