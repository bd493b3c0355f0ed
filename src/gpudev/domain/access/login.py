"""Login proofs, agreed by client and server: the signed STS request, the ID token's nonce."""

import base64
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from gpudev.domain.errors import Invalid

STS_METHOD = "POST"
STS_BODY = "Action=GetCallerIdentity&Version=2011-06-15"
STS_CONTENT_TYPE = "application/x-www-form-urlencoded; charset=utf-8"
SERVER_HEADER = "X-GPU-Dev-Server"
"""The server that a proof is for, by the name under which the client reaches it. Other servers reject the proof."""
NONCE_HEADER = "X-GPU-Dev-Nonce"
"""The server's nonce for one login."""
_REGION = re.compile(r"[a-z]{2,4}(-[a-z]{2,12}){1,2}-[0-9]{1,2}")
_PARTITIONS = (
    ("cn-", "aws-cn", "amazonaws.com.cn"),
    ("us-gov-", "aws-us-gov", "amazonaws.com"),
    ("us-iso-", "aws-iso", "c2s.ic.gov"),
    ("us-isob-", "aws-iso-b", "sc2s.sgov.gov"),
    ("eu-isoe-", "aws-iso-e", "cloud.adc-e.uk"),
    ("us-isof-", "aws-iso-f", "csp.hci.ic.gov"),
    ("eusc-", "aws-eusc", "amazonaws.eu"),
    ("", "aws", "amazonaws.com"),
)
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class StsEndpoint:
    """The AWS Security Token Service of one region."""

    region: str
    partition: str
    host: str

    @property
    def url(self) -> str:
        return f"https://{self.host}/"


def get_sts_endpoint(region: str) -> StsEndpoint:
    if not _REGION.fullmatch(region):
        raise Invalid(f"invalid AWS region {region[:40]!r}")
    partition, domain = next((name, domain) for prefix, name, domain in _PARTITIONS if region.startswith(prefix))
    return StsEndpoint(region, partition, f"sts.{region}.{domain}")


def server_name(api_url: str) -> str:
    """A server's name for clients that reach it at this address: the host, and the port unless it is the default."""
    parts = urlsplit(api_url)
    host = parts.hostname or ""
    shown = f"[{host}]" if ":" in host else host
    port = parts.port
    return shown if port in (None, _DEFAULT_PORTS.get(parts.scheme)) else f"{shown}:{port}"


# The nonce of an OIDC login names the server it is for.
#
# An ID token is valid for any gpu-dev server with the same issuer. A hostile server could reuse the token of a person
# it lured. The nonce is the only part of a token that the client chooses, so it names the server that the client logs
# in to.


_BOUND_NONCE = re.compile(r"[A-Za-z0-9_-]{43}\.([A-Za-z0-9_-]{43})")


def bind_nonce(random: str, server: str) -> str:
    """`random`: 43 random characters. `server`: its name (`server_name`) for the client that logs in."""
    return f"{random}.{_server_digest(server)}"


def names_another_server(nonce: object, servers: Iterable[str]) -> bool:
    """Whether this nonce names a server that is not in `servers`. Nonces of other clients name no server."""
    named = _BOUND_NONCE.fullmatch(nonce) if isinstance(nonce, str) else None
    return named is not None and named[1] not in {_server_digest(server) for server in servers}


def _server_digest(server: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(f"gpu-dev {server}".encode()).digest()).decode().rstrip("=")
