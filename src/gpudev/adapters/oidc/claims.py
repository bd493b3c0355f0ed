"""Rules for the claims of an ID token, and the person that they name. Pure.

The signature has been verified before, so the claims are the issuer's. The token may still be for another program, be
too old, or name a person who may not log in.
"""

import math
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from gpudev.domain.access.users import Role, check_username
from gpudev.domain.errors import Forbidden, Invalid, Unauthenticated
from gpudev.ports.access import Person
from gpudev.settings import OidcSettings

OIDC_PROVIDER = "oidc"
CLOCK_SKEW = timedelta(seconds=60)
"""How far the issuer's clock may be from ours."""
MAX_TOKEN_AGE = timedelta(minutes=10)
"""A login uses its token immediately; an older token may have leaked."""
_SUBJECT = re.compile(r"[!-~]{1,255}")


def check_claims(claims: Mapping[str, Any], settings: OidcSettings, now: datetime, nonce: str | None) -> datetime:
    """Check issuer, audience, times and nonce. Returns when the token expires. Raises Unauthenticated."""
    if claims.get("iss") != settings.issuer:
        raise Unauthenticated("the ID token is from another issuer")
    _check_audience(claims, settings.client_id)
    expires_at = _check_times(claims, now)
    if nonce is not None and claims.get("nonce") != nonce:
        raise Unauthenticated("the ID token belongs to another login: its nonce differs")
    return expires_at


def person_from_claims(claims: Mapping[str, Any], settings: OidcSettings) -> Person:
    """Raises Forbidden for a person who may not log in, Unauthenticated for invalid claims."""
    subject = claims.get("sub")
    if not isinstance(subject, str) or not _SUBJECT.fullmatch(subject):
        raise Unauthenticated("the ID token has no valid subject (sub)")
    email = _verified_email(claims)
    if settings.email_domains and (
        email is None or _email_domain(email) not in {domain.lower() for domain in settings.email_domains}
    ):
        domains = ", ".join(settings.email_domains)
        raise Forbidden(f"login needs a verified email address of {domains}")
    return Person(
        username=_username(claims, settings, email),
        provider=OIDC_PROVIDER,
        subject=f"{settings.issuer} {subject}",
        email=email,
        role=_role_from_groups(claims, settings),
    )


def _check_audience(claims: Mapping[str, Any], client_id: str) -> None:
    audience = claims.get("aud")
    audiences = [audience] if isinstance(audience, str) else audience
    if not isinstance(audiences, list) or client_id not in audiences:
        raise Unauthenticated("the ID token is for another program than gpu-dev")
    # A token with several audiences names the program that got it; one that names another program is not for us.
    party = claims.get("azp")
    if (len(audiences) > 1 or party is not None) and party != client_id:
        raise Unauthenticated("the ID token was issued to another program than gpu-dev")


def _check_times(claims: Mapping[str, Any], now: datetime) -> datetime:
    expires_at, issued_at = _time_claim(claims, "exp", now), _time_claim(claims, "iat", now)
    if expires_at + CLOCK_SKEW <= now:
        raise Unauthenticated("the ID token has expired: log in again with `gpu-dev login`")
    if issued_at - CLOCK_SKEW > now:
        raise Unauthenticated("the ID token is from the future: check the clock here and at the issuer")
    if issued_at + MAX_TOKEN_AGE + CLOCK_SKEW <= now:
        raise Unauthenticated("the ID token is too old for a login: log in again with `gpu-dev login`")
    if "nbf" in claims and _time_claim(claims, "nbf", now) - CLOCK_SKEW > now:
        raise Unauthenticated("the ID token is not valid yet")
    return expires_at


def _time_claim(claims: Mapping[str, Any], name: str, now: datetime) -> datetime:
    seconds = claims.get(name)
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and math.isfinite(seconds):
        try:
            return datetime.fromtimestamp(seconds, now.tzinfo)
        except (OverflowError, OSError, ValueError):
            pass
    raise Unauthenticated(f"invalid {name} in the ID token (expected a time)")


def _verified_email(claims: Mapping[str, Any]) -> str | None:
    """In lower case. None: there is no valid address, or the issuer has not verified it, so anyone could claim it."""
    email = claims.get("email")
    if claims.get("email_verified") is not True or not isinstance(email, str) or email.count("@") != 1:
        return None
    return email.lower() if email.isascii() and email.isprintable() and len(email) <= 255 else None


def _email_domain(email: str) -> str:
    return email.rpartition("@")[2]


def _username(claims: Mapping[str, Any], settings: OidcSettings, email: str | None) -> str:
    claim = settings.username_claim
    name = email if claim == "email" else claims.get(claim)
    if not isinstance(name, str):
        needed = "a verified email address" if claim == "email" else f"a {claim}"
        raise Forbidden(f"the issuer sends no user name for you (expected {needed}); ask your administrator")
    try:
        return check_username(name)
    except Invalid as error:
        raise Forbidden(f"your {claim} at the issuer cannot be a user name: {error.message}") from error


def _role_from_groups(claims: Mapping[str, Any], settings: OidcSettings) -> Role | None:
    """Groups are compared exactly. None: no groups are configured."""
    mapped = ((Role.ADMIN, settings.admin_groups), (Role.OPERATOR, settings.operator_groups))
    if not any(groups for _, groups in (*mapped, (Role.USER, settings.user_groups))):
        return None
    claimed = claims.get(settings.groups_claim)
    # Only a list counts: a plain text would be compared letter by letter.
    own = {group for group in claimed if isinstance(group, str)} if isinstance(claimed, list) else set()
    for role, groups in mapped:
        if own.intersection(groups):
            return role
    if settings.user_groups and not own.intersection(settings.user_groups):
        raise Forbidden(f"login needs membership of {', '.join(settings.user_groups)}; ask your administrator")
    return Role.USER
