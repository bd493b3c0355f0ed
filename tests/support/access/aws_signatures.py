"""Requests as people sign them, and as attackers do: everything may be changed before it is signed, or after."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from gpudev.domain.access.login import NONCE_HEADER, SERVER_HEADER, STS_BODY, STS_CONTENT_TYPE, get_sts_endpoint
from gpudev.ports.access import SignedRequest
from support.access.sts_stub import Identity, Message, sign, single_sign_on

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
"""Where the tests' clock begins."""
REGION = "us-east-2"
STS = get_sts_endpoint(REGION)
SERVER = "gpu.example.com"
NONCE = "a-nonce-of-this-server-0"
ADA = single_sign_on("ada")


@dataclass(frozen=True)
class Draft:
    """What is to be signed. As it stands it is what the client signs."""

    method: str = "POST"
    url: str = STS.url
    body: str = STS_BODY
    host: str = STS.host
    server: str | None = SERVER
    nonce: str | None = NONCE
    more: Mapping[str, str] = field(default_factory=dict)
    """Further headers, signed too."""
    signed: Sequence[str] | None = None
    at: datetime = NOW
    region: str = REGION
    service: str = "sts"
    identity: Identity = ADA

    def sign(self) -> SignedRequest:
        headers = {"Host": self.host, "Content-Type": STS_CONTENT_TYPE}
        if self.server is not None:
            headers[SERVER_HEADER] = self.server
        if self.nonce is not None:
            headers[NONCE_HEADER] = self.nonce
        message = Message(self.method, self.url, list({**headers, **self.more}.items()), self.body.encode())
        signed = sign(message, self.identity, at=self.at, region=self.region, service=self.service, signed=self.signed)
        return SignedRequest(self.method, self.url, signed, self.body)


def but(request: SignedRequest, headers: Mapping[str, str | None] | None = None, **changes: Any) -> SignedRequest:
    """Changed after it was signed. None: without that header."""
    merged = {**request.headers, **(headers or {})}
    kept = {name: value for name, value in merged.items() if value is not None}
    return replace(request, headers=kept, **changes)


def wire(request: SignedRequest) -> dict[str, Any]:
    return {"method": request.method, "url": request.url, "headers": dict(request.headers), "body": request.body}
