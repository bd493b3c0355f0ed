"""Authentication: the bearer key of a request, checked with the Identity port and cached.

In the steady state no request queries the database: a valid key is cached for a minute while access changes are being
received, and a revoked key is dropped when its change arrives. While changes are not being received, a key is looked up
again every second. Either way a revoked key works for at most a second, and no key works after its expiry.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from gpudev.domain.access.users import ApiKey
from gpudev.domain.errors import RateLimited, Unauthenticated
from gpudev.domain.sessions.grants import TOKEN_PREFIX
from gpudev.http_edge.rate_limits import TokenBuckets, rate_limit_key
from gpudev.ports.access import AccessChange, AccessChanges, KeyAuthenticator, NoAccessChanges, UserStore
from gpudev.ports.clock import Clock

KEY_CACHE_SECONDS = 60.0
UNCONFIRMED_KEY_SECONDS = 0.9
"""How long a key is cached while access changes are not being received."""
_MAX_CACHED_KEYS = 10_000
_MAX_WRONG_KEYS = 10_000
_MAX_HEADER = 512
_V = TypeVar("_V")
_KEY_HINT = "send your API key as 'Authorization: Bearer gpudev_…' (`gpu-dev login` gets one)"
_WEBSOCKET_HINT = (
    "this token is for a WebSocket, but the request was not upgraded: something between you and the API does not"
    " forward WebSockets (see docs/operations/reverse-proxies.md)"
)
_INVALID_KEY = "this API key is invalid, expired or revoked: `gpu-dev login` gets a new one"


@dataclass(frozen=True, slots=True)
class _CachedKey:
    key: ApiKey
    requested_at: float
    """When the lookup began. The result may not reflect a later revocation."""


class Authentication:
    def __init__(
        self,
        identity: KeyAuthenticator,
        clock: Clock,
        *,
        changes: AccessChanges | None = None,
        wrong_keys: TokenBuckets | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wrong_keys`: the limit on different wrong keys per address."""
        self._identity = identity
        self._clock = clock
        self._changes = changes or NoAccessChanges()
        self._wrong_keys = wrong_keys or TokenBuckets(60, 60, monotonic=monotonic)
        self._monotonic = monotonic
        self._cached: dict[bytes, _CachedKey] = {}
        self._known_wrong: dict[bytes, float] = {}
        self._lookups: dict[bytes, asyncio.Task[ApiKey]] = {}
        self._change_count = 0
        self._changes.attach(self._on_access_change)

    async def authenticate(
        self,
        authorization: str | None,
        address: str | None = None,
        *,
        unconfirmed_seconds: float = UNCONFIRMED_KEY_SECONDS,
    ) -> ApiKey:
        """Raises Unauthenticated, or RateLimited for an address that tries too many keys.

        `unconfirmed_seconds`: the maximum age of a cached key while access changes are not being received.
        """
        secret = _parse_bearer(authorization)
        digest = hashlib.sha256(secret.encode()).digest()
        known = self._find_cached(digest, unconfirmed_seconds)
        if known is not None:
            return known
        if self._monotonic() < self._known_wrong.get(digest, 0.0):
            raise Unauthenticated(_INVALID_KEY)
        client = rate_limit_key(address)
        if wait := self._wrong_keys.wait_seconds(client):
            raise RateLimited("too many wrong API keys from your address; try again later", retry_after_seconds=wait)
        try:
            return await self._find_key_once(digest, secret)
        except Unauthenticated:
            self._wrong_keys.spend(client)
            raise

    def forget_key(self, key_id: int) -> None:
        """For a key revoked by this process: takes effect immediately."""
        self._on_access_change(AccessChange(key_id=key_id))

    def forget_user(self, user_id: int) -> None:
        self._on_access_change(AccessChange(user_id=user_id))

    async def _find_key_once(self, digest: bytes, secret: str) -> ApiKey:
        """Concurrent requests with the same key share one lookup."""
        lookup = self._lookups.get(digest)
        if lookup is None:
            lookup = asyncio.ensure_future(self._find_key(digest, secret))
            self._lookups[digest] = lookup
            lookup.add_done_callback(lambda done: self._on_lookup_done(digest, done))
        return await asyncio.shield(lookup)

    async def _find_key(self, digest: bytes, secret: str) -> ApiKey:
        requested_at, change_count = self._monotonic(), self._change_count
        try:
            key = await self._identity.authenticate(secret)
        except Unauthenticated:
            _store_bounded(self._known_wrong, digest, requested_at + UNCONFIRMED_KEY_SECONDS, _MAX_WRONG_KEYS)
            raise
        # A change received during the lookup may concern this key and be newer than the result.
        if change_count == self._change_count:
            _store_bounded(self._cached, digest, _CachedKey(key, requested_at), _MAX_CACHED_KEYS)
        return key

    def _on_lookup_done(self, digest: bytes, done: asyncio.Task[ApiKey]) -> None:
        self._lookups.pop(digest, None)
        if not done.cancelled():
            done.exception()  # retrieved, even if all callers were cancelled

    def _find_cached(self, digest: bytes, unconfirmed_seconds: float) -> ApiKey | None:
        receives_changes = self._changes.is_fresh()
        found = self._cached.get(digest)
        if found is None:
            return None
        expired = found.key.expires_at is not None and found.key.expires_at <= self._clock.now()
        age = self._monotonic() - found.requested_at
        if expired or age >= (KEY_CACHE_SECONDS if receives_changes else unconfirmed_seconds):
            del self._cached[digest]
            return None
        return found.key

    def _on_access_change(self, change: AccessChange) -> None:
        self._change_count += 1
        self._known_wrong.clear()
        if change.key_id is None and change.user_id is None:
            self._cached.clear()
            return
        self._cached = {
            digest: entry
            for digest, entry in self._cached.items()
            if entry.key.key_id != change.key_id and entry.key.user.user_id != change.user_id
        }


class ApiKeyIdentity:
    """Authenticates this system's own API keys against the user store."""

    def __init__(self, users: UserStore) -> None:
        self._users = users

    async def authenticate(self, secret: str) -> ApiKey:
        key = await self._users.find_key(secret)
        if key is None:
            raise Unauthenticated(_INVALID_KEY)
        return key


def _store_bounded(entries: dict[bytes, _V], digest: bytes, value: _V, max_entries: int) -> None:
    """Evicts the oldest entries."""
    entries.pop(digest, None)
    while len(entries) >= max_entries:
        del entries[next(iter(entries))]
    entries[digest] = value


def _parse_bearer(authorization: str | None) -> str:
    if not authorization:
        raise Unauthenticated(f"an API key is required: {_KEY_HINT}")
    scheme, _, secret = authorization.partition(" ")
    secret = secret.strip()
    if scheme.lower() == "bearer" and secret.startswith(TOKEN_PREFIX):
        raise Unauthenticated(_WEBSOCKET_HINT)
    # Checked first, so that a malformed key costs no query.
    if scheme.lower() != "bearer" or len(authorization) > _MAX_HEADER or not secret.startswith("gpudev_"):
        raise Unauthenticated(f"malformed API key: {_KEY_HINT}")
    if not secret.isascii() or not secret.isprintable():
        raise Unauthenticated(f"malformed API key: {_KEY_HINT}")
    return secret
