"""Leases and locks: who may plan, and who runs a reconciler pass."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to plan. Writes that carry an older epoch change nothing."""

    name: str
    holder: str
    epoch: int


class LeaseStore(Protocol):
    async def acquire(self, name: str, holder: str, ttl: timedelta) -> Lease | None:
        """Take or keep the lease by the database's clock; None while another's heartbeat is fresh.
        The epoch goes up whenever the holder changes."""
        ...

    async def release(self, lease: Lease) -> None: ...

    async def is_held(self, name: str) -> bool:
        """Whether anybody's heartbeat is fresh."""
        ...


class ReconcilePass(StrEnum):
    AVAILABILITY = "availability"
    DISKS = "disks"
    EXPIRY = "expiry"


class ReconcileLocks(Protocol):
    def hold(self, which: ReconcilePass, *, wait: bool) -> AbstractAsyncContextManager[str | None]:
        """None: it is ours until the end of the block. Otherwise (never when waiting): who is at it, in words."""
        ...
