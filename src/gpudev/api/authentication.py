"""Who is asking: the bearer key of a request, checked with the Identity port and remembered.

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
from gpudev.domain.errors import TooOften, Unauthenticated
from gpudev.domain.sessions.grants import TOKEN_PREFIX
from gpudev.http_edge.rate_limits import TokenBuckets, neighbourhood
from gpudev.ports.access import Identity
from gpudev.ports.changes import AccessChange, AccessChanges, NoAccessChanges
from gpudev.ports.clock import Clock
from gpudev.ports.reservations import UserStore

REMEMBERED_S = 60.0
UNHEARD_S = 0.9
"""How long a key is remembered while nobody can say whether it was revoked."""
_MOST_REMEMBERED = 10_000
_MOST_WRONG = 10_000
_MAX_HEADER = 512
_V = TypeVar("_V")
_HOW = "send your API key as 'Authorization: Bearer gpudev_…' (`gpu-dev login` gets one)"
_NO_WEBSOCKET = (
    "this token opens a WebSocket, and none was asked for: something between you and the API does not pass WebSockets"
    " on (an operator finds how in docs/operations/reverse-proxies.md)"
)
_NOT_VALID = "this API key is not valid (any more): `gpu-dev login` gets a new one"


@dataclass(frozen=True, slots=True)
class _Remembered:
    key: ApiKey
    asked_at: float
    """When the question was sent: what was revoked after that may not be in the answer."""


class Authentication:
    def __init__(
        self,
        identity: Identity,
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
        self._remembered: dict[bytes, _Remembered] = {}
        self._wrong: dict[bytes, float] = {}
        self._asking: dict[bytes, asyncio.Task[ApiKey]] = {}
        self._heard_count = 0
        self._changes.attach(self._heard)

    async def authenticate(
        self, authorization: str | None, address: str | None = None, *, unheard_s: float = UNHEARD_S
    ) -> ApiKey:
        """Raises Unauthenticated, or TooOften for an address that tries too many keys.

        `unheard_s`: how old an answer may be while nobody can say whether the key was revoked since.
        """
        secret = _bearer(authorization)
        digest = hashlib.sha256(secret.encode()).digest()
        known = self._recall(digest, unheard_s)
        if known is not None:
            return known
        if self._monotonic() < self._wrong.get(digest, 0.0):
            raise Unauthenticated(_NOT_VALID)
        whose = neighbourhood(address)
        if wait := self._wrong_keys.wait(whose):
            raise TooOften("too many wrong keys came from your address; wait a little", again_in_seconds=wait)
        try:
            return await self._ask_once(digest, secret)
        except Unauthenticated:
            self._wrong_keys.spend(whose)
            raise

    def forget(self, key_id: int) -> None:
        """It was revoked here: it ends now, not in a moment."""
        self._heard(AccessChange(key_id=key_id))

    def forget_user(self, user_id: int) -> None:
        self._heard(AccessChange(user_id=user_id))

    async def _ask_once(self, digest: bytes, secret: str) -> ApiKey:
        """Requests that come while their key is being looked up share the answer."""
        asking = self._asking.get(digest)
        if asking is None:
            asking = asyncio.ensure_future(self._look_up(digest, secret))
            self._asking[digest] = asking
            asking.add_done_callback(lambda done: self._answered(digest, done))
        return await asyncio.shield(asking)

    async def _look_up(self, digest: bytes, secret: str) -> ApiKey:
        asked_at, heard_count = self._monotonic(), self._heard_count
        try:
            key = await self._identity.authenticate(secret)
        except Unauthenticated:
            _keep(self._wrong, digest, asked_at + UNHEARD_S, _MOST_WRONG)
            raise
        # What was heard in between may be about this key, and then the answer is the older of the two.
        if heard_count == self._heard_count:
            _keep(self._remembered, digest, _Remembered(key, asked_at), _MOST_REMEMBERED)
        return key

    def _answered(self, digest: bytes, done: asyncio.Task[ApiKey]) -> None:
        self._asking.pop(digest, None)
        if not done.cancelled():
            done.exception()  # seen, also when everybody who asked has left

    def _recall(self, digest: bytes, unheard_s: float) -> ApiKey | None:
        is_heard = self._changes.is_fresh()
        found = self._remembered.get(digest)
        if found is None:
            return None
        ended = found.key.expires_at is not None and found.key.expires_at <= self._clock.now()
        age = self._monotonic() - found.asked_at
        if ended or age >= (REMEMBERED_S if is_heard else unheard_s):
            del self._remembered[digest]
            return None
        return found.key

    def _heard(self, change: AccessChange) -> None:
        self._heard_count += 1
        self._wrong.clear()
        if change.key_id is None and change.user_id is None:
            self._remembered.clear()
            return
        self._remembered = {
            digest: entry
            for digest, entry in self._remembered.items()
            if entry.key.key_id != change.key_id and entry.key.user.user_id != change.user_id
        }


class KeyIdentity:
    """The Identity of this system's own API keys: whoever holds a key is its user."""

    def __init__(self, users: UserStore) -> None:
        self._users = users

    async def authenticate(self, secret: str) -> ApiKey:
        key = await self._users.find_key(secret)
        if key is None:
            raise Unauthenticated(_NOT_VALID)
        return key


def _keep(kept: dict[bytes, _V], digest: bytes, value: _V, most: int) -> None:
    """The newest so many."""
    kept.pop(digest, None)
    while len(kept) >= most:
        del kept[next(iter(kept))]
    kept[digest] = value


def _bearer(authorization: str | None) -> str:
    if not authorization:
        raise Unauthenticated(f"this needs an API key: {_HOW}")
    scheme, _, secret = authorization.partition(" ")
    secret = secret.strip()
    if scheme.lower() == "bearer" and secret.startswith(TOKEN_PREFIX):
        raise Unauthenticated(_NO_WEBSOCKET)
    # The form is checked first, so that noise costs no query.
    if scheme.lower() != "bearer" or len(authorization) > _MAX_HEADER or not secret.startswith("gpudev_"):
        raise Unauthenticated(f"that is no API key of this system: {_HOW}")
    if not secret.isascii() or not secret.isprintable():
        raise Unauthenticated(f"that is no API key of this system: {_HOW}")
    return secret
