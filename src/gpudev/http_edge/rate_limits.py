"""Rate limits and concurrency limits, in memory, per address or user.

Each process counts separately, so the effective limit is multiplied by the number of processes. Memory is bounded: when
there are too many buckets, full ones are evicted first, then the least recently used.
"""

import ipaddress
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

_MAX_BUCKETS = 10_000


class Rate(NamedTuple):
    burst: float
    per_minute: float


_SIXTY_A_MINUTE, _TEN_A_MINUTE = Rate(burst=60, per_minute=60), Rate(burst=10, per_minute=10)


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits per address or user. Not settings: normal use stays far below them, even of many users behind one
    address, and guessing keys stays infeasible."""

    logins: Rate = _SIXTY_A_MINUTE
    """Per address. A login takes up to two requests."""
    wrong_keys: Rate = _SIXTY_A_MINUTE
    """Different wrong API keys, tokens and Jupyter secrets per address. Beyond this, keys from there are not looked
    up."""
    rotations: Rate = _TEN_A_MINUTE
    """New keys per user."""
    streams_per_user: int = 50
    """Concurrent event streams. A stream occupies its connection for as long as it runs."""
    streams_per_address: int = 500


REQUEST_LIMITS = RequestLimits()


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class TokenBuckets:
    """Token buckets by name: `burst` at once, then `per_minute`."""

    def __init__(
        self,
        burst: float,
        per_minute: float,
        *,
        max_buckets: int = _MAX_BUCKETS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._burst = burst
        self._per_second = per_minute / 60
        self._max_buckets = max_buckets
        self._monotonic = monotonic
        self._buckets: dict[str, _Bucket] = {}

    def take(self, name: str) -> float:
        """Takes a token and returns 0, or returns the seconds until one is available."""
        wait = self.wait_seconds(name)
        if wait == 0:
            self.spend(name)
        return wait

    def wait_seconds(self, name: str) -> float:
        """Like `take`, without taking a token."""
        bucket = self._buckets.get(name)
        if bucket is None:
            return 0.0
        self._refill(bucket)
        return 0.0 if bucket.tokens >= 1 else (1 - bucket.tokens) / self._per_second

    def spend(self, name: str, count: float = 1) -> None:
        """May go below zero: many concurrent attempts that were checked before any was counted are all counted."""
        bucket = self._buckets.pop(name, None) or _Bucket(self._burst, self._monotonic())
        self._refill(bucket)
        bucket.tokens -= count
        if len(self._buckets) >= self._max_buckets:
            self._evict()
        self._buckets[name] = bucket  # moved to the end: the order is least recently used first

    def _refill(self, bucket: _Bucket) -> None:
        now = self._monotonic()
        bucket.tokens = min(self._burst, bucket.tokens + (now - bucket.at) * self._per_second)
        bucket.at = now

    def _evict(self) -> None:
        for bucket in self._buckets.values():
            self._refill(bucket)
        self._buckets = {name: bucket for name, bucket in self._buckets.items() if bucket.tokens < self._burst}
        for name in list(self._buckets)[: len(self._buckets) - self._max_buckets // 2]:
            del self._buckets[name]


class ConcurrencyLimits:
    """Concurrency limit by name."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held: Counter[str] = Counter()

    def has_free_slot(self, name: str) -> bool:
        return self._held.get(name, 0) < self.limit

    @contextmanager
    def hold_slot(self, name: str) -> Iterator[None]:
        self._held[name] += 1
        try:
            yield
        finally:
            self._held[name] -= 1
            if not self._held[name]:
                del self._held[name]


def rate_limit_key(address: str | None) -> str:
    """The key that an address counts under: an IPv6 /64 belongs to one client."""
    try:
        parsed = ipaddress.ip_address(address or "")
    except ValueError:
        return address or "unknown"
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
