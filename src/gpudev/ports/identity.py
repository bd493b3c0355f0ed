"""Who is asking, and which public keys may log in for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gpudev.domain.users import ApiKey, Role


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


class Identity(Protocol):
    async def authenticate(self, secret: str) -> ApiKey:
        """Raises Unauthenticated."""
        ...


class KeySource(Protocol):
    async def public_keys(self, github_user: str) -> Sequence[str]:
        """The keys GitHub publishes for a user. Raises Invalid when there are none, Unavailable when GitHub
        does not answer."""
        ...
