"""What AWS's token service said: who somebody is, or why not. Pure.

An answer is believed when it is all that such an answer can be, and nothing else: anything unexpected (a proxy's page,
another action's answer, entities, a second element of a name) means that we do not know who answered.
"""

import re
from dataclasses import dataclass
from xml.etree import ElementTree

from gpudev.domain.errors import GpuDevError, Unauthenticated, Unavailable

_NAMESPACE = "{https://sts.amazonaws.com/doc/2011-06-15/}"
_PROLOGUE = re.compile(r"""\A<\?xml version=["']1\.0["'](?: encoding=["'][Uu][Tt][Ff]-8["'])?\s*\?>""")
_CODE = re.compile(r"[A-Za-z.]{1,64}")
_EXPIRED_CODES = ("ExpiredToken", "ExpiredTokenException", "RequestExpired")
_RETRYABLE_CODES = (
    "Throttling",
    "ThrottlingException",
    "RequestLimitExceeded",
    "ServiceUnavailable",
    "InternalFailure",
)
_NOT_STS = "what answered for AWS's token service was not it"


@dataclass(frozen=True, slots=True)
class CallerIdentity:
    arn: str
    account: str
    user_id: str


def parse_caller_identity(status: int, content_type: str, body: bytes) -> CallerIdentity:
    """Raises Unauthenticated when AWS says no, Unavailable when it does not say anything we understand."""
    if status >= 500:
        raise Unavailable(f"AWS's token service is in trouble: status {status}")
    if status != 200 and not 400 <= status < 500:
        raise Unavailable(f"{_NOT_STS}: status {status}")
    root = _parse_xml(content_type, body)
    if status != 200:
        raise _parse_error(root)
    result = _only_child(_expect(root, "GetCallerIdentityResponse"), "GetCallerIdentityResult")
    if len(result) != 3:
        raise Unavailable(f"{_NOT_STS}: {len(result)} fields")
    return CallerIdentity(
        arn=_text(_only_child(result, "Arn")),
        account=_text(_only_child(result, "Account")),
        user_id=_text(_only_child(result, "UserId")),
    )


def _parse_xml(content_type: str, body: bytes) -> ElementTree.Element:
    if content_type.partition(";")[0].strip().lower() not in ("text/xml", "application/xml"):
        raise Unavailable(f"{_NOT_STS}: it sent {content_type[:80]!r}")
    try:
        text = body.decode("utf-8")
        # In another encoding (the parser guesses them) declarations could hide from us and not from it.
        if "<!" in text or "\0" in text or "<?" in _PROLOGUE.sub("", text, count=1):
            raise Unavailable(f"{_NOT_STS}: declarations in its XML")
        return ElementTree.fromstring(text)
    except (UnicodeDecodeError, ElementTree.ParseError) as error:
        raise Unavailable(f"{_NOT_STS}: {error}") from error


def _parse_error(root: ElementTree.Element) -> GpuDevError:
    code = _text(_only_child(_only_child(_expect(root, "ErrorResponse"), "Error"), "Code"))
    if not _CODE.fullmatch(code):
        return Unavailable(f"{_NOT_STS}: it refused with a strange code")
    if code in _RETRYABLE_CODES:
        return Unavailable(f"AWS's token service cannot answer now: {code}")
    if code in _EXPIRED_CODES:
        return Unauthenticated(f"your AWS credentials have ended ({code}): get new ones, with SSO by `aws sso login`")
    return Unauthenticated(f"AWS does not accept this signature ({code})")


def _expect(element: ElementTree.Element, name: str) -> ElementTree.Element:
    if element.tag != _NAMESPACE + name:
        raise Unavailable(f"{_NOT_STS}: {element.tag[:120]!r} instead of {name}")
    return element


def _only_child(element: ElementTree.Element, name: str) -> ElementTree.Element:
    found = element.findall(_NAMESPACE + name)
    if len(found) != 1:
        raise Unavailable(f"{_NOT_STS}: {name} stands there {len(found)} times")
    return found[0]


def _text(element: ElementTree.Element) -> str:
    if len(element) or not element.text:
        raise Unavailable(f"{_NOT_STS}: {element.tag} is no text")
    return element.text
