"""What an ID token must say before it is believed, and who it is about. Pure: claims, settings and now go in.

Signatures are checked elsewhere, and before: what is read here was said by the issuer. It may still be meant for
somebody else, be too old, or be about a person who has no business here.
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
"""A login follows its token at once; an older one was lying about somewhere."""
_SUBJECT = re.compile(r"[!-~]{1,255}")


def check_claims(claims: Mapping[str, Any], settings: OidcSettings, now: datetime, nonce: str | None) -> datetime:
    """That the token is the issuer's, for us and for now. Answers when it ends. Raises Unauthenticated."""
    if claims.get("iss") != settings.issuer:
        raise Unauthenticated("the ID token is from another issuer")
    _check_audience(claims, settings.client_id)
    ends = _check_times(claims, now)
    if nonce is not None and claims.get("nonce") != nonce:
        raise Unauthenticated("the ID token is the answer to another login: its nonce is not the one that was sent")
    return ends


def person_from_claims(claims: Mapping[str, Any], settings: OidcSettings) -> Person:
    """Who it is about. Raises Forbidden for somebody who may not come in, Unauthenticated for what cannot be read."""
    subject = claims.get("sub")
    if not isinstance(subject, str) or not _SUBJECT.fullmatch(subject):
        raise Unauthenticated("the ID token does not say whom it is about")
    email = _verified_email(claims)
    if settings.email_domains and (
        email is None or _email_domain(email) not in {one.lower() for one in settings.email_domains}
    ):
        domains = ", ".join(settings.email_domains)
        raise Forbidden(f"only people with a verified email address of {domains} may come in")
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
    # A token for several names the one it was given to; one that names somebody else is theirs.
    party = claims.get("azp")
    if (len(audiences) > 1 or party is not None) and party != client_id:
        raise Unauthenticated("the ID token was given to another program than gpu-dev")


def _check_times(claims: Mapping[str, Any], now: datetime) -> datetime:
    ends, issued = _time_claim(claims, "exp", now), _time_claim(claims, "iat", now)
    if ends + CLOCK_SKEW <= now:
        raise Unauthenticated("the ID token has expired: log in again with `gpu-dev login`")
    if issued - CLOCK_SKEW > now:
        raise Unauthenticated("the ID token is from the future: is the clock right, here and at the issuer?")
    if issued + MAX_TOKEN_AGE + CLOCK_SKEW <= now:
        raise Unauthenticated("the ID token is too old for a login: log in again with `gpu-dev login`")
    if "nbf" in claims and _time_claim(claims, "nbf", now) - CLOCK_SKEW > now:
        raise Unauthenticated("the ID token is not valid yet")
    return ends


def _time_claim(claims: Mapping[str, Any], name: str, now: datetime) -> datetime:
    seconds = claims.get(name)
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and math.isfinite(seconds):
        try:
            return datetime.fromtimestamp(seconds, now.tzinfo)
        except (OverflowError, OSError, ValueError):
            pass
    raise Unauthenticated(f"the ID token does not say {name} as a time")


def _verified_email(claims: Mapping[str, Any]) -> str | None:
    """In one spelling. An address nobody has checked is what its owner likes to be called, and counts as none."""
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
        what = "a verified email address" if claim == "email" else f"a {claim}"
        raise Forbidden(f"the issuer does not say {what} of you, which would be your name here; ask your administrator")
    try:
        return check_username(name)
    except Invalid as error:
        raise Forbidden(f"your {claim} at the issuer cannot be a user's name here: {error.message}") from error


def _role_from_groups(claims: Mapping[str, Any], settings: OidcSettings) -> Role | None:
    """By the groups, each compared letter by letter. None: groups mean nothing here."""
    mapped = ((Role.ADMIN, settings.admin_groups), (Role.OPERATOR, settings.operator_groups))
    if not any(groups for _, groups in (*mapped, (Role.USER, settings.user_groups))):
        return None
    said = claims.get(settings.groups_claim)
    # One group as a plain text is not a list of one: who would take it apart by letters, or by "in"?
    own = {group for group in said if isinstance(group, str)} if isinstance(said, list) else set()
    for role, groups in mapped:
        if own.intersection(groups):
            return role
    if settings.user_groups and not own.intersection(settings.user_groups):
        raise Forbidden(f"only members of {', '.join(settings.user_groups)} may come in; ask your administrator")
    return Role.USER
