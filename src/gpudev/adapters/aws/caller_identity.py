"""AWS callers: parsing of STS responses, and which callers may log in. Pure.

A response must have exactly the expected form. Anything else (a proxy's page, another action's response, entities, a
repeated element) means that we do not know who answered.

A caller may log in with an accepted role: the role itself, or the one that AWS single sign-on creates for a
permission set of that name. The user name is the role session's name in lower case (single sign-on ignores case).
Single sign-on sets the session's name itself. A caller that assumes a role directly chooses it. Therefore a session of
a role can only be a user who was first created by a session of the same role.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from gpudev.domain.errors import Forbidden, GpuDevError, Unauthenticated, Unavailable
from gpudev.ports.access import Person

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
_NOT_STS = "invalid response of AWS's token service"


@dataclass(frozen=True, slots=True)
class CallerIdentity:
    arn: str
    account: str
    user_id: str


def parse_caller_identity(status: int, content_type: str, body: bytes) -> CallerIdentity:
    """Raises Unauthenticated when AWS rejects the signature, Unavailable when the response is not understood."""
    if status >= 500:
        raise Unavailable(f"AWS's token service failed: status {status}")
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
        raise Unavailable(f"{_NOT_STS}: content type {content_type[:80]!r}")
    try:
        text = body.decode("utf-8")
        # Only UTF-8: the parser guesses encodings, and in another one this check would miss declarations.
        if "<!" in text or "\0" in text or "<?" in _PROLOGUE.sub("", text, count=1):
            raise Unavailable(f"{_NOT_STS}: declarations in its XML")
        return ElementTree.fromstring(text)
    except (UnicodeDecodeError, ElementTree.ParseError) as error:
        raise Unavailable(f"{_NOT_STS}: {error}") from error


def _parse_error(root: ElementTree.Element) -> GpuDevError:
    code = _text(_only_child(_only_child(_expect(root, "ErrorResponse"), "Error"), "Code"))
    if not _CODE.fullmatch(code):
        return Unavailable(f"{_NOT_STS}: invalid error code")
    if code in _RETRYABLE_CODES:
        return Unavailable(f"AWS's token service cannot answer now: {code}")
    if code in _EXPIRED_CODES:
        return Unauthenticated(f"your AWS credentials have expired ({code}): get new ones, with SSO by `aws sso login`")
    return Unauthenticated(f"AWS rejects this signature ({code})")


def _expect(element: ElementTree.Element, name: str) -> ElementTree.Element:
    if element.tag != _NAMESPACE + name:
        raise Unavailable(f"{_NOT_STS}: {element.tag[:120]!r} instead of {name}")
    return element


def _only_child(element: ElementTree.Element, name: str) -> ElementTree.Element:
    found = element.findall(_NAMESPACE + name)
    if len(found) != 1:
        raise Unavailable(f"{_NOT_STS}: {len(found)} elements {name} (expected 1)")
    return found[0]


def _text(element: ElementTree.Element) -> str:
    if len(element) or not element.text:
        raise Unavailable(f"{_NOT_STS}: {element.tag} without text")
    return element.text


# Accepted roles.


_ASSUMED_ROLE = re.compile(
    r"arn:(?P<partition>aws[a-z-]{0,20}):sts::(?P<account>[0-9]{12}):assumed-role/"
    r"(?P<role>[A-Za-z0-9_+=,.@-]{1,64})/(?P<session>[A-Za-z0-9_+=,.@-]{2,64})"
)
_SINGLE_SIGN_ON = re.compile(r"AWSReservedSSO_(?P<set>[A-Za-z0-9_+=,.@-]{1,32})_[0-9a-f]{16}")
_ROLE_ID = r"AROA[A-Z0-9]{12,124}"


@dataclass(frozen=True, slots=True)
class LoginRoles:
    roles: Sequence[str]
    accounts: Sequence[str]

    def admit(self, caller: CallerIdentity, partition: str) -> Person:
        """Raises Forbidden, naming the accepted roles and accounts."""
        found = _ASSUMED_ROLE.fullmatch(caller.arn)
        if found is None or not _is_consistent(caller, found):
            raise self._forbidden(caller)
        if found["partition"] != partition or found["account"] not in self.accounts:
            raise self._forbidden(caller)
        session = found["session"].lower()
        single_sign_on = _SINGLE_SIGN_ON.fullmatch(found["role"])
        if single_sign_on and single_sign_on["set"] in self.roles:
            source = "sso"
        elif found["role"] in self.roles:
            source = f"role/{found['role']}"
        else:
            raise self._forbidden(caller)
        return Person(
            username=session,
            provider="aws",
            subject=f"{partition}:{found['account']}:{source}:{session}",
            email=session if "@" in session else None,
        )

    def _forbidden(self, caller: CallerIdentity) -> Forbidden:
        roles, accounts = " or ".join(self.roles), " or ".join(self.accounts)
        return Forbidden(
            f"login needs the role {roles} in the account {accounts}; AWS says you are {caller.arn[:256]!r}"
        )


def _is_consistent(caller: CallerIdentity, arn: re.Match[str]) -> bool:
    """The response names account and session in several fields, which must agree."""
    return caller.account == arn["account"] and bool(
        re.fullmatch(f"{_ROLE_ID}:{re.escape(arn['session'])}", caller.user_id)
    )
