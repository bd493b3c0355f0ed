"""Signature Version 4: made for whoever signs anything at all, and worked out again from what arrived."""

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import quote, unquote, urlsplit

from support.access.sts_stub.identities import Identity

FRESH_FOR = timedelta(minutes=5)
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256\s+Credential=(?P<key>[^/,\s]+)/(?P<scope>[^,\s]+)\s*,\s*"
    r"SignedHeaders=(?P<signed>[^,\s]+)\s*,\s*Signature=(?P<signature>[0-9a-f]+)"
)


class NotSigned(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Message:
    method: str
    url: str
    """With its host when it is signed; what arrives has a path and a query alone."""
    headers: Sequence[tuple[str, str]]
    body: bytes

    def values(self, name: str) -> list[str]:
        return [value for given, value in self.headers if given.lower() == name]


def sign(
    message: Message,
    identity: Identity,
    *,
    at: datetime,
    region: str = "us-east-2",
    service: str = "sts",
    signed: Sequence[str] | None = None,
) -> dict[str, str]:
    """The headers to send: those of the message, with a date, a token and a signature of all of them or of those."""
    stamp = f"{at:%Y%m%dT%H%M%SZ}"
    headers = {**dict(message.headers), "X-Amz-Date": stamp}
    if identity.token:
        headers["X-Amz-Security-Token"] = identity.token
    whole = Message(message.method, message.url, list(headers.items()), message.body)
    names = sorted(name.lower() for name in headers) if signed is None else list(signed)
    headers["Authorization"] = authorization(whole, identity, f"{stamp[:8]}/{region}/{service}/aws4_request", names)
    return headers


def authorization(message: Message, identity: Identity, scope: str, signed: Sequence[str]) -> str:
    signature = _signature(message, identity.secret, scope, signed)
    return (
        f"AWS4-HMAC-SHA256 Credential={identity.access_key}/{scope}, "
        f"SignedHeaders={';'.join(signed)}, Signature={signature}"
    )


def verify(message: Message, identities: dict[str, Identity], now: datetime) -> Identity:
    """Who signed it. Raises NotSigned as STS answers."""
    found = _AUTHORIZATION.fullmatch(", ".join(message.values("authorization")))
    if found is None:
        raise NotSigned("MissingAuthenticationToken", "Request is missing Authentication Token")
    identity = identities.get(found["key"])
    if identity is None or message.values("x-amz-security-token") != ([identity.token] if identity.token else []):
        raise NotSigned("InvalidClientTokenId", "The security token included in the request is invalid.")
    signed = found["signed"].split(";")
    given = {name.lower() for name, _ in message.headers}
    unsigned = {name for name in given if name == "host" or name.startswith("x-amz-")} - set(signed)
    if unsigned or not set(signed) <= given:
        raise NotSigned("SignatureDoesNotMatch", f"headers must be signed: {sorted(unsigned)}")
    _check_scope(message, found["scope"], now)
    if not hmac.compare_digest(_signature(message, identity.secret, found["scope"], signed), found["signature"]):
        raise NotSigned("SignatureDoesNotMatch", "The request signature we calculated does not match")
    return identity


def _check_scope(message: Message, scope: str, now: datetime) -> None:
    stamp, parts = "".join(message.values("x-amz-date")), scope.split("/")
    try:
        signed_at = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise NotSigned("IncompleteSignature", "Date must be in ISO-8601 'basic format'") from None
    host = "".join(message.values("host"))
    if len(parts) != 4 or parts[2:] != ["sts", "aws4_request"] or f"sts.{parts[1]}." not in host:
        raise NotSigned("SignatureDoesNotMatch", "Credential should be scoped to the correct service and region")
    if parts[0] != stamp[:8] or abs(now - signed_at) > FRESH_FOR:
        raise NotSigned("SignatureDoesNotMatch", f"Signature expired or not yet current: {stamp}")


def _signature(message: Message, secret: str, scope: str, signed: Sequence[str]) -> str:
    stamp = "".join(message.values("x-amz-date"))
    digest = hashlib.sha256(_canonical(message, signed).encode()).hexdigest()
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}".encode(), "sha256").hex()


def _canonical(message: Message, signed: Sequence[str]) -> str:
    parts = urlsplit(message.url)
    pairs = [pair.partition("=") for pair in parts.query.split("&") if pair]
    query = "&".join(sorted(f"{_encoded(name)}={_encoded(value)}" for name, _, value in pairs))
    headers = "".join(
        f"{name}:{','.join(' '.join(value.split()) for value in message.values(name))}\n" for name in signed
    )
    body = hashlib.sha256(message.body).hexdigest()
    return "\n".join([message.method, quote(parts.path or "/"), query, headers, ";".join(signed), body])


def _encoded(text: str) -> str:
    return quote(unquote(text), safe="-_.~")
