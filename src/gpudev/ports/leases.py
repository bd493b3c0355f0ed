"""Leases and locks: one planner, and one runner per reconciler pass."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to plan. Writes with an older epoch change nothing."""

    name: str
    holder: str
    epoch: int


class LeaseStore(Protocol):
    async def acquire(self, name: str, holder: str, ttl: timedelta) -> Lease | None:
        """Takes or renews the lease, by the database's clock. None: another holder's heartbeat is fresh. The epoch
        increases with every change of holder."""
        ...

    async def release(self, lease: Lease) -> None: ...

    async def is_held(self, name: str) -> bool:
        """Whether any holder's heartbeat is fresh."""
        ...


class ReconcilePass(StrEnum):
    AVAILABILITY = "availability"
    DISKS = "disks"
    EXPIRY = "expiry"


class ReconcileLocks(Protocol):
    def hold(self, which: ReconcilePass, *, wait: bool) -> AbstractAsyncContextManager[str | None]:
        """Yields None if the lock is ours until the end of the block, else (only without `wait`) a description of the
        holder."""
        ...
