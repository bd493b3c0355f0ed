"""Invitations and the links that carry them.

The secret is in the link's fragment, which browsers and proxies never send.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from urllib.parse import urlsplit

from gpudev.domain.access.users import Role
from gpudev.domain.errors import Invalid

INVITATION_PATH = "/invitation"
_FRAGMENT = re.compile(r"([A-Za-z0-9_-]{43})(?:\.([A-Za-z0-9_-]{43}))?")
_LOOPBACK = re.compile(r"localhost|::1|127(\.[0-9]{1,3}){3}")


class InvitationState(StrEnum):
    OPEN = "open"
    USED = "used"
    REVOKED = "revoked"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Invitation:
    invitation_id: int
    username: str
    role: Role | None
    """None: an existing user keeps their role; a new one becomes `user`."""
    created_at: datetime
    expires_at: datetime
    used_at: datetime | None = None
    revoked_at: datetime | None = None

    def state(self, now: datetime) -> InvitationState:
        if self.used_at is not None:
            return InvitationState.USED
        if self.revoked_at is not None:
            return InvitationState.REVOKED
        return InvitationState.EXPIRED if self.expires_at <= now else InvitationState.OPEN


@dataclass(frozen=True, slots=True)
class InvitationLink:
    api_url: str
    secret: str
    fingerprint: str | None = None
    """Of the server's public key (SHA-256, base64url). None: a public authority signed its certificate, or the API is
    on the same machine."""

    def __str__(self) -> str:
        return f"{self.api_url}{INVITATION_PATH}#{self.secret}{f'.{self.fingerprint}' if self.fingerprint else ''}"


def parse_invitation_link(text: str) -> InvitationLink:
    """Raises Invalid. The error does not quote the text: it may contain most of a secret."""
    try:
        parts = urlsplit(text.strip())
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise Invalid("invalid invitation: its address cannot be read") from error
    secrets = _FRAGMENT.fullmatch(parts.fragment)
    if not host or secrets is None or not parts.path.endswith(INVITATION_PATH) or parts.query or "@" in parts.netloc:
        raise Invalid(f"invalid invitation (expected the whole link: https://HOST:PORT{INVITATION_PATH}#…)")
    if parts.scheme != "https" and not (parts.scheme == "http" and _LOOPBACK.fullmatch(host)):
        raise Invalid("unsafe invitation: its address must be https, or on this machine")
    secret, fingerprint = secrets.groups()
    shown = f"[{host}]" if ":" in host else host
    path = parts.path.removesuffix(INVITATION_PATH).rstrip("/")
    return InvitationLink(
        f"{parts.scheme}://{shown}{f':{port}' if port is not None else ''}{path}", secret, fingerprint
    )
