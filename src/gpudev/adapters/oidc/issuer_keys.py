"""The issuer's keys, fetched from where it publishes them and kept for a while.

Its address comes from the settings; what it answers is bounded in size and time, redirects are not followed. A token
that names an unknown key may be signed with a new one, so we look again: but seldom, because anybody can send us such
tokens, and one look answers all who ask at that moment.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx2

from gpudev.domain.errors import Unauthenticated, Unavailable

KEY_CACHE_SECONDS = 3600.0
UNKNOWN_KEY_PAUSE_SECONDS = 30.0
"""Between two looks for a key that is not known."""
FAILURE_PAUSE_SECONDS = 5.0
"""After the issuer did not answer."""
_MAX_BYTES = 512 * 1024
_ANSWER_SECONDS = 5.0
"""For one answer, while a person waits for the login."""
_LOOPBACK = ("127.0.0.1", "::1", "localhost")

JsonWebKey = Mapping[str, Any]


class IssuerKeys:
    def __init__(
        self, issuer: str, *, seconds: float = _ANSWER_SECONDS, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._issuer = issuer
        self._seconds = seconds
        self._monotonic = monotonic
        # Uncompressed, so that what is counted while reading is what is held.
        self._client = httpx2.AsyncClient(
            timeout=seconds, follow_redirects=False, headers={"Accept-Encoding": "identity"}
        )
        self._keys: dict[str, JsonWebKey] = {}
        self._fetched_at: float | None = None
        self._asked_at: float | None = None
        self._failure: Unavailable | None = None
        self._refresh_lock = asyncio.Lock()

    async def close(self) -> None:
        await self._client.aclose()

    async def get_key(self, name: str) -> JsonWebKey:
        """Raises Unauthenticated when the issuer has no such key, Unavailable when it cannot be asked."""
        if not self._has_key(name):
            async with self._refresh_lock:
                if not self._has_key(name) and self._may_refresh():
                    await self._refresh_keys()
        if self._failure is not None and not self._is_current():
            raise self._failure
        if name not in self._keys:
            raise Unauthenticated("the ID token is signed with a key that the issuer does not have")
        return self._keys[name]

    def _has_key(self, name: str) -> bool:
        return self._is_current() and name in self._keys

    def _is_current(self) -> bool:
        return self._fetched_at is not None and self._monotonic() - self._fetched_at < KEY_CACHE_SECONDS

    def _may_refresh(self) -> bool:
        if self._asked_at is None:
            return True
        pause = UNKNOWN_KEY_PAUSE_SECONDS if self._is_current() else FAILURE_PAUSE_SECONDS
        return self._monotonic() - self._asked_at >= pause

    async def _refresh_keys(self) -> None:
        self._asked_at = self._monotonic()
        try:
            # The client's own limits are per step; this one is for all of it, however slowly it drips.
            async with asyncio.timeout(self._seconds):
                self._keys = await self._fetch_keys()
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError) as error:
            self._failure = Unavailable(f"the OIDC issuer {self._issuer} does not answer; try again later")
            self._failure.__cause__ = error
        except Unavailable as error:
            self._failure = error
        else:
            self._failure = None
            self._fetched_at = self._monotonic()

    async def _fetch_keys(self) -> dict[str, JsonWebKey]:
        about = await self._get_json(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
        if about.get("issuer") != self._issuer:
            raise Unavailable(
                f"what answers at {self._issuer} says to be another issuer; is GPU_DEV_OIDC_ISSUER right?"
            )
        listed = (await self._get_json(self._check_keys_url(about.get("jwks_uri")))).get("keys")
        if not isinstance(listed, list):
            raise self._invalid_answer("its keys are no list")
        signing = [key for key in listed if isinstance(key, dict) and key.get("use", "sig") == "sig"]
        return {key["kid"]: key for key in signing if isinstance(key.get("kid"), str)}

    def _check_keys_url(self, address: object) -> str:
        """Keys that anybody on the way could change would be nobody's."""
        if isinstance(address, str):
            try:
                parts, own = urlsplit(address), urlsplit(self._issuer)
            except ValueError:
                raise self._invalid_answer("it does not say where its keys are") from None
            on_this_machine = parts.hostname in _LOOPBACK and own.hostname in _LOOPBACK
            if parts.hostname and (parts.scheme == "https" or (parts.scheme == "http" and on_this_machine)):
                return address
        raise self._invalid_answer("it does not say where its keys are")

    async def _get_json(self, address: str) -> dict[str, Any]:
        async with self._client.stream("GET", address) as answer:
            if answer.status_code != httpx2.codes.OK:
                raise self._invalid_answer(f"it answers {answer.status_code}")
            body = bytearray()
            async for chunk in answer.aiter_raw():
                body += chunk
                if len(body) > _MAX_BYTES:
                    raise self._invalid_answer("its answer is too long")
        try:
            said = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise self._invalid_answer("its answer is no JSON") from error
        if not isinstance(said, dict):
            raise self._invalid_answer("its answer is no JSON object")
        return said

    def _invalid_answer(self, what: str) -> Unavailable:
        return Unavailable(f"the OIDC issuer {self._issuer} does not answer as one does ({what}); ask an operator")
