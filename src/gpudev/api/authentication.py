"""Authentication: the bearer key of a request, checked with the Identity port and cached.

In the steady state no request asks the database: a valid key is remembered for a minute, as long as changes of access
are known to be heard; whatever is revoked is forgotten when that is heard. While nothing is known to be heard, a key is
looked up again every second. Either way a revoked key works for at most a second, and none outlives its own end.
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
"""How long a key is remembered while nobody can say whether it was revoked."""
_MAX_CACHED_KEYS = 10_000
_MAX_WRONG_KEYS = 10_000
_MAX_HEADER = 512
_V = TypeVar("_V")
_KEY_HINT = "send your API key as 'Authorization: Bearer gpudev_…' (`gpu-dev login` gets one)"
_WEBSOCKET_HINT = (
    "this token opens a WebSocket, and none was asked for: something between you and the API does not pass WebSockets"
    " on (an operator finds how in docs/operations/reverse-proxies.md)"
)
_INVALID_KEY = "this API key is not valid (any more): `gpu-dev login` gets a new one"


@dataclass(frozen=True, slots=True)
class _CachedKey:
    key: ApiKey
    requested_at: float
    """When the question was sent: what was revoked after that may not be in the answer."""


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
        """`wrong_keys`: how many different wrong keys one address may try."""
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
        """Raises Unauthenticated, or TooOften for an address that tries too many keys.

        `unheard_s`: how old an answer may be while nobody can say whether the key was revoked since.
        """
        secret = _parse_bearer(authorization)
        digest = hashlib.sha256(secret.encode()).digest()
        known = self._find_cached(digest, unconfirmed_seconds)
        if known is not None:
            return known
        if self._monotonic() < self._known_wrong.get(digest, 0.0):
            raise Unauthenticated(_INVALID_KEY)
        whose = rate_limit_key(address)
        if wait := self._wrong_keys.wait_seconds(whose):
            raise RateLimited("too many wrong keys came from your address; wait a little", retry_after_seconds=wait)
        try:
            return await self._find_key_once(digest, secret)
        except Unauthenticated:
            self._wrong_keys.spend(whose)
            raise

    def forget_key(self, key_id: int) -> None:
        """It was revoked here: it ends now, not in a moment."""
        self._on_access_change(AccessChange(key_id=key_id))

    def forget_user(self, user_id: int) -> None:
        self._on_access_change(AccessChange(user_id=user_id))

    async def _find_key_once(self, digest: bytes, secret: str) -> ApiKey:
        """Requests that come while their key is being looked up share the answer."""
        asking = self._lookups.get(digest)
        if asking is None:
            asking = asyncio.ensure_future(self._find_key(digest, secret))
            self._lookups[digest] = asking
            asking.add_done_callback(lambda done: self._on_lookup_done(digest, done))
        return await asyncio.shield(asking)

    async def _find_key(self, digest: bytes, secret: str) -> ApiKey:
        asked_at, heard_count = self._monotonic(), self._change_count
        try:
            key = await self._identity.authenticate(secret)
        except Unauthenticated:
            _store_bounded(self._known_wrong, digest, asked_at + UNCONFIRMED_KEY_SECONDS, _MAX_WRONG_KEYS)
            raise
        # What was heard in between may be about this key, and then the answer is the older of the two.
        if heard_count == self._change_count:
            _store_bounded(self._cached, digest, _CachedKey(key, asked_at), _MAX_CACHED_KEYS)
        return key

    def _on_lookup_done(self, digest: bytes, done: asyncio.Task[ApiKey]) -> None:
        self._lookups.pop(digest, None)
        if not done.cancelled():
            done.exception()  # seen, also when everybody who asked has left

    def _find_cached(self, digest: bytes, unconfirmed_seconds: float) -> ApiKey | None:
        is_heard = self._changes.is_fresh()
        found = self._cached.get(digest)
        if found is None:
            return None
        ended = found.key.expires_at is not None and found.key.expires_at <= self._clock.now()
        age = self._monotonic() - found.requested_at
        if ended or age >= (KEY_CACHE_SECONDS if is_heard else unconfirmed_seconds):
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
    """The Identity of this system's own API keys: whoever holds a key is its user."""

    def __init__(self, users: UserStore) -> None:
        self._users = users

    async def authenticate(self, secret: str) -> ApiKey:
        key = await self._users.find_key(secret)
        if key is None:
            raise Unauthenticated(_INVALID_KEY)
        return key


def _store_bounded(kept: dict[bytes, _V], digest: bytes, value: _V, most: int) -> None:
    """The newest so many."""
    kept.pop(digest, None)
    while len(kept) >= most:
        del kept[next(iter(kept))]
    kept[digest] = value


def _parse_bearer(authorization: str | None) -> str:
    if not authorization:
        raise Unauthenticated(f"this needs an API key: {_KEY_HINT}")
    scheme, _, secret = authorization.partition(" ")
    secret = secret.strip()
    if scheme.lower() == "bearer" and secret.startswith(TOKEN_PREFIX):
        raise Unauthenticated(_WEBSOCKET_HINT)
    # The form is checked first, so that noise costs no query.
    if scheme.lower() != "bearer" or len(authorization) > _MAX_HEADER or not secret.startswith("gpudev_"):
        raise Unauthenticated(f"that is no API key of this system: {_KEY_HINT}")
    if not secret.isascii() or not secret.isprintable():
        raise Unauthenticated(f"that is no API key of this system: {_KEY_HINT}")
    return secret
