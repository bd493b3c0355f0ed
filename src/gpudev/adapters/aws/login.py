"""Who AWS says somebody is: an identity provider that forwards what they signed, once it has been checked.

Where it goes is ours to say, never the request's: redirects are not followed, the answer is bounded in size and time.
"""

import asyncio
from datetime import timedelta

import httpx2

from gpudev.adapters.aws.caller_identity import CallerIdentity, LoginRoles, parse_caller_identity
from gpudev.adapters.aws.signed_request import AcceptedRequest, SignedRequestPolicy
from gpudev.domain.access.login import STS_BODY, STS_METHOD, get_sts_endpoint
from gpudev.domain.errors import Unauthenticated, Unavailable
from gpudev.ports.access import NonceStore, Person, SignedRequest
from gpudev.ports.clock import Clock
from gpudev.settings import Settings

_MAX_BYTES = 64 * 1024
_STS_TIMEOUT = timedelta(seconds=10)
"""For one answer, while a person waits for the login."""


class AwsIdentityProvider:
    """An IdentityProvider."""

    def __init__(
        self, settings: Settings, nonces: NonceStore, clock: Clock, sts_timeout: timedelta = _STS_TIMEOUT
    ) -> None:
        login = settings.aws_login
        self._request_policy = SignedRequestPolicy(
            [get_sts_endpoint(region) for region in login.regions], settings.server_names
        )
        self._roles = LoginRoles(login.roles, login.accounts)
        self._nonces = nonces
        self._clock = clock
        self._sts = _StsClient(login.sts_url, sts_timeout.total_seconds())

    async def close(self) -> None:
        await self._sts.close()

    async def identify(self, proof: SignedRequest) -> Person:
        now = self._clock.now()
        accepted = self._request_policy.check(proof, now)
        # Spent before AWS is asked: of two who bring the same request at the same time, one is too late.
        if not await self._nonces.spend(accepted.nonce, now=now):
            raise Unauthenticated("the nonce that was signed is not one of ours, or was used already, or is too old")
        caller = await self._sts.get_caller_identity(accepted)
        return self._roles.admit(caller, accepted.endpoint.partition)


class _StsClient:
    def __init__(self, url: str, seconds: float) -> None:
        self._url = url
        self._seconds = seconds
        # Uncompressed, so that what is counted while reading is what is held.
        self._client = httpx2.AsyncClient(
            timeout=seconds, follow_redirects=False, headers={"Accept": "text/xml", "Accept-Encoding": "identity"}
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def get_caller_identity(self, accepted: AcceptedRequest) -> CallerIdentity:
        """Raises Unauthenticated and Unavailable."""
        try:
            # The client's own limits are per step; this one is for the whole answer, however slowly it drips.
            async with asyncio.timeout(self._seconds):
                return await self._send(accepted)
        except (httpx2.HTTPError, TimeoutError) as error:
            raise Unavailable(f"AWS's token service does not answer: {error!r}") from error

    async def _send(self, accepted: AcceptedRequest) -> CallerIdentity:
        async with self._client.stream(
            STS_METHOD, self._url or accepted.endpoint.url, headers=list(accepted.headers), content=STS_BODY.encode()
        ) as answer:
            body = bytearray()
            async for chunk in answer.aiter_raw():
                body += chunk
                if len(body) > _MAX_BYTES:
                    raise Unavailable("AWS's token service sent more than it ever does")
        return parse_caller_identity(answer.status_code, answer.headers.get("content-type", ""), bytes(body))
