"""Tokens of the proxy. Only hashes are kept: who reads the database can open nothing with what is there."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from gpudev.domain.sessions.grants import Grant, GrantState, TokenPurpose


class ProxyTokenStore(Protocol):
    async def save_token(
        self, digest: bytes, grant: Grant, *, ends_at: datetime, now: datetime, purpose: TokenPurpose = TokenPurpose.SSH
    ) -> None:
        """Also forgets those that ended."""
        ...

    async def find_token(
        self, digest: bytes, purpose: TokenPurpose = TokenPurpose.SSH
    ) -> tuple[Grant, datetime] | None:
        """What it grants and until when it opens sessions; None: it is none, or one for something else."""
        ...

    async def consume_token(self, digest: bytes, purpose: TokenPurpose) -> tuple[Grant, datetime] | None:
        """The same, and it is none any more."""
        ...

    async def load_grant_states(self, grants: Sequence[Grant]) -> dict[Grant, GrantState]:
        """All in one question."""
        ...
