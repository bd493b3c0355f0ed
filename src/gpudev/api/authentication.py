"""Who is asking: the bearer key of a request, checked with the Identity port and remembered for a moment.

A remembered key may outlive its revocation elsewhere by that moment, never its own end.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable
from datetime import timedelta

from gpudev.domain.errors import Unauthenticated
from gpudev.domain.users import ApiKey
from gpudev.ports.clock import Clock
from gpudev.ports.identity import Identity
from gpudev.ports.stores import UserStore

_REMEMBER = timedelta(seconds=1)
_MOST_REMEMBERED = 10_000
_MAX_HEADER = 512
_HOW = "send your API key as 'Authorization: Bearer gpudev_…' (`gpu-dev login` gets one)"


class Authentication:
    def __init__(self, identity: Identity, clock: Clock, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._identity = identity
        self._clock = clock
        self._monotonic = monotonic
        self._remembered: dict[bytes, tuple[ApiKey, float]] = {}
        self._asking: dict[bytes, asyncio.Task[ApiKey]] = {}

    async def authenticate(self, authorization: str | None) -> ApiKey:
        """Raises Unauthenticated."""
        secret = _bearer(authorization)
        digest = hashlib.sha256(secret.encode()).digest()
        if known := self._recall(digest):
            return known
        key = await self._ask_once(digest, secret)
        if len(self._remembered) >= _MOST_REMEMBERED:
            self._remembered.clear()
        self._remembered[digest] = (key, self._monotonic() + _REMEMBER.total_seconds())
        return key

    async def _ask_once(self, digest: bytes, secret: str) -> ApiKey:
        """Requests that come while their key is being looked up share the answer."""
        asking = self._asking.get(digest)
        if asking is None:
            asking = asyncio.ensure_future(self._identity.authenticate(secret))
            self._asking[digest] = asking
            asking.add_done_callback(lambda done: self._answered(digest, done))
        return await asyncio.shield(asking)

    def _answered(self, digest: bytes, done: asyncio.Task[ApiKey]) -> None:
        self._asking.pop(digest, None)
        if not done.cancelled():
            done.exception()  # seen, also when everybody who asked has left

    def forget(self, key_id: int) -> None:
        """It was revoked here: it ends now, not in a moment."""
        self._remembered = {d: entry for d, entry in self._remembered.items() if entry[0].key_id != key_id}

    def _recall(self, digest: bytes) -> ApiKey | None:
        found = self._remembered.get(digest)
        if found is None:
            return None
        key, until = found
        ended = key.expires_at is not None and key.expires_at <= self._clock.now()
        if ended or self._monotonic() >= until:
            del self._remembered[digest]
            return None
        return key


class KeyIdentity:
    """The Identity of this system's own API keys: whoever holds a key is its user."""

    def __init__(self, users: UserStore) -> None:
        self._users = users

    async def authenticate(self, secret: str) -> ApiKey:
        key = await self._users.find_key(secret)
        if key is None:
            raise Unauthenticated("this API key is not valid (any more): `gpu-dev login` gets a new one")
        return key


def _bearer(authorization: str | None) -> str:
    if not authorization:
        raise Unauthenticated(f"this needs an API key: {_HOW}")
    scheme, _, secret = authorization.partition(" ")
    secret = secret.strip()
    # The form is checked first, so that noise costs no query.
    if scheme.lower() != "bearer" or len(authorization) > _MAX_HEADER or not secret.startswith("gpudev_"):
        raise Unauthenticated(f"that is no API key of this system: {_HOW}")
    if not secret.isascii() or not secret.isprintable():
        raise Unauthenticated(f"that is no API key of this system: {_HOW}")
    return secret
