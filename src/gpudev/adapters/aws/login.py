"""Login with AWS credentials: checks a person's signed request and forwards it to AWS.

We choose where it goes, never the request. Redirects are not followed. The response is limited in size and time.
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
"""For one response, while a person waits for the login."""


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
        # Spent before the call to AWS: of two identical requests at the same time, only one passes.
        if not await self._nonces.spend(accepted.nonce, now=now):
            raise Unauthenticated("the signed nonce is unknown, already used or expired")
        caller = await self._sts.get_caller_identity(accepted)
        return self._roles.admit(caller, accepted.endpoint.partition)


class _StsClient:
    def __init__(self, url: str, seconds: float) -> None:
        self._url = url
        self._seconds = seconds
        # Uncompressed, so that the bytes counted are the bytes kept.
        self._client = httpx2.AsyncClient(
            timeout=seconds, follow_redirects=False, headers={"Accept": "text/xml", "Accept-Encoding": "identity"}
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def get_caller_identity(self, accepted: AcceptedRequest) -> CallerIdentity:
        """Raises Unauthenticated and Unavailable."""
        try:
            # The client's own timeouts are per step; this one is for the whole response.
            async with asyncio.timeout(self._seconds):
                return await self._send(accepted)
        except (httpx2.HTTPError, TimeoutError) as error:
            raise Unavailable(f"AWS's token service does not answer: {error!r}") from error

    async def _send(self, accepted: AcceptedRequest) -> CallerIdentity:
        async with self._client.stream(
            STS_METHOD, self._url or accepted.endpoint.url, headers=list(accepted.headers), content=STS_BODY.encode()
        ) as response:
            body = bytearray()
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > _MAX_BYTES:
                    raise Unavailable(f"the response of AWS's token service is longer than {_MAX_BYTES} bytes")
        return parse_caller_identity(response.status_code, response.headers.get("content-type", ""), bytes(body))
