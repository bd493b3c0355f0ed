"""Who is asking, and which public keys may log in for them."""

from collections.abc import Sequence
from typing import Protocol

from gpudev.domain.users import ApiKey


class Identity(Protocol):
    async def authenticate(self, secret: str) -> ApiKey:
        """Raises Unauthenticated."""
        ...


class KeySource(Protocol):
    async def public_keys(self, github_user: str) -> Sequence[str]:
        """The keys GitHub publishes for a user. Raises Invalid when there are none, Unavailable when GitHub
        does not answer."""
        ...
