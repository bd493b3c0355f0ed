"""Login with AWS credentials: checks a person's signed request and forwards it to AWS.

We choose where it goes, never the request. Redirects are not followed. The response is limited in size and time.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import httpx2

from gpudev.adapters.aws.caller_identity import CallerIdentity, LoginRoles, parse_caller_identity
from gpudev.domain.access.login import (
    NONCE_HEADER,
    SERVER_HEADER,
    STS_BODY,
    STS_CONTENT_TYPE,
    STS_METHOD,
    StsEndpoint,
    get_sts_endpoint,
)
from gpudev.domain.errors import Invalid, Unauthenticated, Unavailable
from gpudev.ports.access import NonceStore, Person, SignedRequest
from gpudev.ports.clock import Clock
from gpudev.settings import Settings

# Policy for signed requests: only a recent "who am I?" for this server is forwarded. Pure.
#
# Values are compared instead of parsed where possible: URL, body and most headers have one valid value each. An
# accepted request is rebuilt from our own values and the few of the sender's, each of which must match a narrow
# pattern. AWS verifies the signature, and the nonce store verifies the nonce.


SIGNATURE_LIFETIME = timedelta(minutes=5)
"""As long as AWS itself accepts a signature. Clocks may differ by as much."""
_TIME_FORMAT = "%Y%m%dT%H%M%SZ"
_HEADER_PATTERNS: Mapping[str, re.Pattern[str]] = {
    "Host": re.compile(r"[a-z0-9.-]{1,255}"),
    "Content-Type": re.compile(re.escape(STS_CONTENT_TYPE)),
    "X-Amz-Date": re.compile(r"[0-9]{8}T[0-9]{6}Z"),
    "X-Amz-Security-Token": re.compile(r"[A-Za-z0-9+/=_-]{1,8192}"),
    SERVER_HEADER: re.compile(r"[a-z0-9.:\[\]-]{1,255}"),
    NONCE_HEADER: re.compile(r"[A-Za-z0-9_-]{16,128}"),
    "Authorization": re.compile(
        r"AWS4-HMAC-SHA256 "
        r"Credential=[A-Z0-9]{16,128}/(?P<date>[0-9]{8})/(?P<region>[a-z0-9-]{1,32})/(?P<service>[a-z0-9-]{1,32})/"
        r"aws4_request, "
        r"SignedHeaders=(?P<signed>[a-z0-9;-]{1,512}), "
        r"Signature=[0-9a-f]{64}"
    ),
}
"""All of these headers are required, and no others are allowed. Credentials of a role always have a security token."""
_SIGNED_HEADERS = ";".join(sorted(name.lower() for name in _HEADER_PATTERNS if name != "Authorization"))


@dataclass(frozen=True, slots=True)
class AcceptedRequest:
    """What may be forwarded. Every part is ours or has been checked."""

    endpoint: StsEndpoint
    headers: Sequence[tuple[str, str]]
    nonce: str


class SignedRequestPolicy:
    def __init__(self, endpoints: Sequence[StsEndpoint], server_names: Sequence[str]) -> None:
        self._endpoints = {endpoint.url: endpoint for endpoint in endpoints}
        self._server_names = frozenset(server_names)

    def check(self, request: SignedRequest, now: datetime) -> AcceptedRequest:
        """Raises Invalid, or Unauthenticated when only its time is wrong."""
        if request.method != STS_METHOD:
            raise Invalid(f"sign a {STS_METHOD} request", field="method")
        endpoint = self._endpoints.get(request.url)
        if endpoint is None:
            raise Invalid(f"sign a request to {' or '.join(self._endpoints)}", field="url")
        if request.body != STS_BODY:
            raise Invalid(f"invalid signed body (expected {STS_BODY})", field="body")
        headers = _check_headers(request.headers)
        if headers["Host"] != endpoint.host:
            raise Invalid(f"invalid signed Host (expected {endpoint.host})", field="headers")
        if headers[SERVER_HEADER] not in self._server_names:
            names = ", ".join(sorted(self._server_names))
            raise Invalid(f"the request was signed for another server (expected {names})", field="headers")
        _check_authorization(headers, endpoint)
        _check_time(headers["X-Amz-Date"], now)
        return AcceptedRequest(endpoint, tuple(headers.items()), headers[NONCE_HEADER])


def _check_headers(received: Mapping[str, str]) -> dict[str, str]:
    """With our spelling of the names, in our order."""
    values = {name.lower(): value for name, value in received.items()}
    expected = {name.lower() for name in _HEADER_PATTERNS}
    if len(values) != len(received) or values.keys() != expected:
        raise Invalid(f"invalid headers (expected {', '.join(_HEADER_PATTERNS)}, each once)", field="headers")
    checked = {name: values[name.lower()] for name in _HEADER_PATTERNS}
    for name, value in checked.items():
        if not _HEADER_PATTERNS[name].fullmatch(value):
            raise Invalid(f"invalid header {name}", field="headers")
    return checked


def _check_authorization(headers: Mapping[str, str], endpoint: StsEndpoint) -> None:
    parts = _HEADER_PATTERNS["Authorization"].fullmatch(headers["Authorization"])
    assert parts is not None  # _check_headers has matched it
    if parts["service"] != "sts" or parts["region"] != endpoint.region:
        raise Invalid(f"sign the request for the service sts in {endpoint.region}", field="headers")
    if parts["date"] != headers["X-Amz-Date"][:8]:
        raise Invalid("the signature's date differs from X-Amz-Date", field="headers")
    if parts["signed"] != _SIGNED_HEADERS:
        raise Invalid(f"invalid signed headers (expected {_SIGNED_HEADERS})", field="headers")


def _check_time(text: str, now: datetime) -> None:
    try:
        signed_at = datetime.strptime(text, _TIME_FORMAT).replace(tzinfo=UTC)
    except ValueError as error:
        raise Invalid("invalid X-Amz-Date (expected a time)", field="headers") from error
    if abs(now - signed_at) >= SIGNATURE_LIFETIME:
        raise Unauthenticated(
            f"the request was signed at {signed_at:%Y-%m-%d %H:%M:%S} UTC, and now it is {now:%H:%M:%S} UTC: sign it "
            "again, and set your clock if it is wrong"
        )


# Identification of the person by AWS's token service.


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
