"""Tokens of the proxy. Only hashes are kept: who reads the database can open nothing with what is there."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from gpudev.domain.sessions.grants import Grant, Purpose, Standing


class ProxyTokenStore(Protocol):
    async def keep(
        self, digest: bytes, grant: Grant, *, ends_at: datetime, now: datetime, purpose: Purpose = Purpose.SSH
    ) -> None:
        """Also forgets those that ended."""
        ...

    async def find(self, digest: bytes, purpose: Purpose = Purpose.SSH) -> tuple[Grant, datetime] | None:
        """What it grants and until when it opens sessions; None: it is none, or one for something else."""
        ...

    async def take(self, digest: bytes, purpose: Purpose) -> tuple[Grant, datetime] | None:
        """The same, and it is none any more."""
        ...

    async def standings(self, grants: Sequence[Grant]) -> dict[Grant, Standing]:
        """All in one question."""
        ...
