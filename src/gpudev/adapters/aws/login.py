"""Who AWS says somebody is: an identity provider that forwards what they signed, once it has been checked.

Where it goes is ours to say, never the request's: redirects are not followed, the answer is bounded in size and time.
"""

import asyncio

import httpx2

from gpudev.adapters.aws.caller_identity import AwsCaller, read_answer
from gpudev.adapters.aws.login_role import LoginRoles
from gpudev.adapters.aws.signed_request import Accepted, SignedShape
from gpudev.domain.access.login import BODY, METHOD, endpoint_of
from gpudev.domain.errors import Unauthenticated, Unavailable
from gpudev.ports.access import NonceStore, Person, SignedRequest
from gpudev.ports.clock import Clock
from gpudev.settings import Settings

_MAX_BYTES = 64 * 1024


class AwsIdentity:
    """An IdentityProvider."""

    def __init__(self, settings: Settings, nonces: NonceStore, clock: Clock) -> None:
        login = settings.aws_login
        self._shape = SignedShape([endpoint_of(region) for region in login.regions], settings.server_names)
        self._roles = LoginRoles(login.roles, login.accounts)
        self._nonces = nonces
        self._clock = clock
        self._sts = _Sts(login.sts_url, login.timeout.total_seconds())

    async def close(self) -> None:
        await self._sts.close()

    async def identify(self, proof: SignedRequest) -> Person:
        now = self._clock.now()
        accepted = self._shape.check(proof, now)
        # Spent before AWS is asked: of two who bring the same request at the same time, one is too late.
        if not await self._nonces.spend(accepted.nonce, now=now):
            raise Unauthenticated("the nonce that was signed is not one of ours, or was used already, or is too old")
        caller = await self._sts.ask(accepted)
        return self._roles.admit(caller, accepted.endpoint.partition)


class _Sts:
    def __init__(self, url: str, seconds: float) -> None:
        self._url = url
        self._seconds = seconds
        # Uncompressed, so that what is counted while reading is what is held.
        self._client = httpx2.AsyncClient(
            timeout=seconds, follow_redirects=False, headers={"Accept": "text/xml", "Accept-Encoding": "identity"}
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def ask(self, accepted: Accepted) -> AwsCaller:
        """Raises Unauthenticated and Unavailable."""
        try:
            # The client's own limits are per step; this one is for the whole answer, however slowly it drips.
            async with asyncio.timeout(self._seconds):
                return await self._ask(accepted)
        except (httpx2.HTTPError, TimeoutError) as error:
            raise Unavailable(f"AWS's token service does not answer: {error!r}") from error

    async def _ask(self, accepted: Accepted) -> AwsCaller:
        async with self._client.stream(
            METHOD, self._url or accepted.endpoint.url, headers=list(accepted.headers), content=BODY.encode()
        ) as answer:
            body = bytearray()
            async for chunk in answer.aiter_raw():
                body += chunk
                if len(body) > _MAX_BYTES:
                    raise Unavailable("AWS's token service sent more than it ever does")
        return read_answer(answer.status_code, answer.headers.get("content-type", ""), bytes(body))
