"""Cache of the issuer's public keys.

The issuer's URL comes from the settings. Responses are limited in size and time, and redirects are not followed. A
token with an unknown key may be signed with a new one, so the keys are fetched again. That happens rarely, because
anyone can send such tokens, and one fetch serves all callers that wait for it.
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
"""Between two fetches because of an unknown key."""
FAILURE_PAUSE_SECONDS = 5.0
"""After the issuer did not answer."""
_MAX_BYTES = 512 * 1024
_FETCH_TIMEOUT_SECONDS = 5.0
"""For one fetch, while a person waits for the login."""
_LOOPBACK = ("127.0.0.1", "::1", "localhost")

JsonWebKey = Mapping[str, Any]


class IssuerKeys:
    def __init__(
        self, issuer: str, *, seconds: float = _FETCH_TIMEOUT_SECONDS, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._issuer = issuer
        self._seconds = seconds
        self._monotonic = monotonic
        # Uncompressed, so that the bytes counted are the bytes kept.
        self._client = httpx2.AsyncClient(
            timeout=seconds, follow_redirects=False, headers={"Accept-Encoding": "identity"}
        )
        self._keys: dict[str, JsonWebKey] = {}
        self._fetched_at: float | None = None
        self._requested_at: float | None = None
        self._failure: Unavailable | None = None
        self._refresh_lock = asyncio.Lock()

    async def close(self) -> None:
        await self._client.aclose()

    async def get_key(self, name: str) -> JsonWebKey:
        """Raises Unauthenticated when the issuer has no such key, Unavailable when it does not answer."""
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
        if self._requested_at is None:
            return True
        pause = UNKNOWN_KEY_PAUSE_SECONDS if self._is_current() else FAILURE_PAUSE_SECONDS
        return self._monotonic() - self._requested_at >= pause

    async def _refresh_keys(self) -> None:
        self._requested_at = self._monotonic()
        try:
            # The client's own timeouts are per step; this one is for the whole fetch.
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
        configuration = await self._get_json(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
        if configuration.get("issuer") != self._issuer:
            raise Unavailable(f"{self._issuer} names another issuer; check GPU_DEV_OIDC_ISSUER")
        listed = (await self._get_json(self._check_keys_url(configuration.get("jwks_uri")))).get("keys")
        if not isinstance(listed, list):
            raise self._invalid_response("its keys are not a list")
        signing = [key for key in listed if isinstance(key, dict) and key.get("use", "sig") == "sig"]
        return {key["kid"]: key for key in signing if isinstance(key.get("kid"), str)}

    def _check_keys_url(self, url: object) -> str:
        """Only https: otherwise an attacker on the network path could replace the keys."""
        if isinstance(url, str):
            try:
                parts, issuer = urlsplit(url), urlsplit(self._issuer)
            except ValueError:
                raise self._invalid_response("no valid jwks_uri") from None
            is_local = parts.hostname in _LOOPBACK and issuer.hostname in _LOOPBACK
            if parts.hostname and (parts.scheme == "https" or (parts.scheme == "http" and is_local)):
                return url
        raise self._invalid_response("no valid jwks_uri")

    async def _get_json(self, url: str) -> dict[str, Any]:
        async with self._client.stream("GET", url) as response:
            if response.status_code != httpx2.codes.OK:
                raise self._invalid_response(f"status {response.status_code}")
            body = bytearray()
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > _MAX_BYTES:
                    raise self._invalid_response("too long")
        try:
            data = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise self._invalid_response("not JSON") from error
        if not isinstance(data, dict):
            raise self._invalid_response("not a JSON object")
        return data

    def _invalid_response(self, problem: str) -> Unavailable:
        return Unavailable(f"invalid response of the OIDC issuer {self._issuer} ({problem}); ask an operator")
