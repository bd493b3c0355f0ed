"""Whether a request was signed for us: Signature Version 4, worked out again from what arrived."""

import hashlib
import hmac
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from support.clouds.aws_stub.account import Refused

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/ ]+)/(?P<day>\d{8})/(?P<region>[a-z0-9-]+)/(?P<service>[a-z0-9]+)"
    r"/aws4_request, SignedHeaders=(?P<headers>[a-z0-9;-]+), Signature=(?P<signature>[0-9a-f]{64})"
)
_SKEW = timedelta(minutes=15)


def check_signature(
    method: str, path: str, headers: Mapping[str, str], body: bytes, *, access_key: str, secret: str, region: str
) -> str:
    """The service that the request was signed for. Raises Refused as AWS would answer."""
    found = _AUTHORIZATION.fullmatch(headers.get("authorization", ""))
    if found is None:
        raise Refused("MissingAuthenticationToken", "Request is missing Authentication Token", 403)
    if found["key"] != access_key:
        raise Refused("AuthFailure", "AWS was not able to validate the provided access credentials", 401)
    if found["region"] != region or not {"host", "x-amz-date"} <= set(found["headers"].split(";")):
        raise Refused("SignatureDoesNotMatch", f"Credential should be scoped to a valid region: {region}", 403)
    stamp = headers.get("x-amz-date", "")
    _check_age(stamp, found["day"])
    names = found["headers"].split(";")
    canonical = "\n".join(
        [method, path, "", *(f"{name}:{' '.join(headers.get(name, '').split())}" for name in names), "",
         found["headers"], hashlib.sha256(body).hexdigest()]
    )  # fmt: skip
    scope = f"{found['day']}/{region}/{found['service']}/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    if not hmac.compare_digest(hmac.digest(key, text.encode(), "sha256").hex(), found["signature"]):
        raise Refused("SignatureDoesNotMatch", "The request signature we calculated does not match", 403)
    return found["service"]


def _check_age(stamp: str, day: str) -> None:
    try:
        signed_at = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise Refused("SignatureDoesNotMatch", "Date must be in ISO-8601 'basic format'", 403) from None
    if not stamp.startswith(day) or abs(datetime.now(UTC) - signed_at) > _SKEW:
        raise Refused("RequestExpired", "Request has expired.", 400)
