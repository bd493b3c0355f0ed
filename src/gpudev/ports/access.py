"""Users, keys, login, invitations and the audit log."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from gpudev.domain.access.invitations import Invitation
from gpudev.domain.access.users import ApiKey, FairShareUsage, IssuedKey, Role, User
from gpudev.domain.ids import UserId

_Proof_contra = TypeVar("_Proof_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Person:
    """A person just identified by an identity provider."""

    username: str
    provider: str
    """The kind of provider: "aws", "oidc", "invitation"."""
    subject: str
    """The provider's permanent id (account and role session, issuer and subject). A user name bound to one subject is
    never given to another."""
    email: str | None = None
    role: Role | None = None
    """The role from the provider's groups. None: not stated; the recorded role stays."""


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A signed request to AWS, as the client sent it. Untrusted until checked."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: str


class IdentityProvider(Protocol[_Proof_contra]):
    """Turns a proof (a signed request, a token) into a person."""

    async def identify(self, proof: _Proof_contra) -> Person:
        """Raises Unauthenticated for an invalid proof, Forbidden for a person who may not log in, Unavailable if the
        provider does not answer."""
        ...


class AccountStore(Protocol):
    async def enrol(self, person: Person, *, came_from: str | None, now: datetime) -> User:
        """The user bound to this person's subject, else a new one. The provider's role is applied, if it states one;
        the last active admin keeps the role. Raises Forbidden if the user is disabled, or if the name (in any case)
        belongs to another subject."""
        ...

    async def expect_login(self, username: str, provider: str) -> None:
        """Binds this existing user to the next person whom the provider identifies by this name. Raises NotFound for an
        unknown user, Conflict if the user is bound already."""
        ...


@dataclass(frozen=True, slots=True)
class Nonce:
    value: str
    expires_at: datetime


class NonceStore(Protocol):
    """Single-use nonces, shared by all API processes."""

    async def issue(self, ttl: timedelta, *, now: datetime) -> Nonce:
        """Raises LimitReached if too many are unspent."""
        ...

    async def spend(self, value: str, *, now: datetime) -> bool:
        """Spends it. False: not one of ours, spent already, or expired."""
        ...


class KeyAuthenticator(Protocol):
    async def authenticate(self, secret: str) -> ApiKey:
        """Raises Unauthenticated."""
        ...


class PublicKeySource(Protocol):
    async def public_keys(self, github_user: str) -> Sequence[str]:
        """The keys that GitHub lists for a user. Raises Invalid if there are none, Unavailable if GitHub does not
        answer."""
        ...


# Invitations, and used ID tokens.


INVITATION_PROVIDER = "invitation"
"""The provider name of invited users."""


@dataclass(frozen=True, slots=True)
class NewInvitation:
    invitation: Invitation
    secret: str
    """Shown once: only its hash is stored."""


@dataclass(frozen=True, slots=True)
class IdToken:
    """An ID token as the client sent it. Untrusted until checked."""

    token: str
    nonce: str | None
    """The nonce it must contain, if the login sent one."""


class InvitationStore(Protocol):
    async def invite(self, username: str, role: Role | None, ttl: timedelta, *, now: datetime) -> NewInvitation:
        """For a new person, or for a user who was created here or invited before; replaces an open invitation. Raises
        Conflict for a user who logs in another way or is disabled."""
        ...

    async def accept(self, secret: str, *, now: datetime) -> Invitation | None:
        """Uses the invitation up. None: unknown, used, revoked or expired."""
        ...

    async def revoke(self, username: str, *, now: datetime) -> int:
        """Revokes all open ones of this name; returns the number. Raises NotFound if there are none."""
        ...

    async def list_invitations(self) -> list[Invitation]: ...


class UsedTokens(Protocol):
    async def use_token(self, digest: bytes, until: datetime, *, now: datetime) -> bool:
        """Records its use; it may be forgotten after `until`. False: used before."""
        ...


# Administration of users and keys. A revocation takes effect within a second in every API process.


@dataclass(frozen=True, slots=True)
class KeyRecord:
    key_id: int
    username: str
    key_prefix: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    """To the minute."""
    description: str
    usable: bool
    """Neither revoked nor expired, and its user is active."""


class UserAdministration(Protocol):
    """All raise NotFound for an unknown user or key, and Conflict for a change that would leave no active admin."""

    async def set_active(self, username: str, active: bool) -> User:
        """Disabling revokes all keys of the user; enabling does not restore them."""
        ...

    async def set_role(self, username: str, role: Role) -> User: ...

    async def list_keys(self, username: str | None = None, *, ended: bool = False) -> list[KeyRecord]:
        """Newest first. `ended`: also those that can no longer be used."""
        ...

    async def revoke_key(self, key_id: int) -> KeyRecord:
        """Idempotent."""
        ...


# The audit log. Append-only.


_KEY_PREFIX_LENGTH = 16
_KEY_PATTERN = re.compile(r"gpudevt?_[A-Za-z0-9_-]{10,}")


@dataclass(frozen=True, slots=True)
class AuditEntry:
    at: datetime
    action: str
    """An endpoint ("POST /v1/jobs/{job_id}/cancel") or an operator's command ("keys revoke")."""
    outcome: str
    """ "ok", or the error code of the response."""
    username: str | None = None
    key_prefix: str | None = None
    target: str | None = None
    address: str | None = None
    status: int | None = None
    request_id: str | None = None
    entry_id: int = 0
    """Assigned by the log. 0: not written yet."""


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """None: any. `action` and `target` match substrings."""

    username: str | None = None
    action: str | None = None
    target: str | None = None
    address: str | None = None
    outcome: str | None = None
    since: datetime | None = None
    after: int = 0
    """Only entries with a greater entry_id (for following the log)."""
    limit: int = 100


class AuditLog(Protocol):
    async def append(self, entries: Sequence[AuditEntry]) -> None: ...

    async def find_entries(self, query: AuditQuery) -> list[AuditEntry]:
        """The newest `limit` entries, in ascending order."""
        ...


def sanitize_text(text: str, max_length: int = 200) -> str:
    """External text for a log: one line, no control characters, no API keys."""
    kept = redact_keys(text[: 2 * max_length])
    shown = "".join(
        c if c.isprintable() and c != "\\" else c.encode("unicode_escape").decode() for c in kept[: max_length + 1]
    )
    return shown if len(shown) <= max_length else shown[: max_length - 1] + "…"


def redact_keys(text: str) -> str:
    """Shortens API keys and session tokens to the prefix that key lists show."""
    return _KEY_PATTERN.sub(lambda found: found[0][:_KEY_PREFIX_LENGTH] + "…", text) if "gpudev" in text else text


class UserStore(Protocol):
    async def add_user(self, username: str, role: Role) -> User: ...

    async def find_user(self, username: str) -> User | None: ...

    async def list_users(self) -> list[User]: ...

    async def set_weight(self, username: str, weight: float) -> None:
        """For fair share. Raises NotFound."""
        ...

    async def usage(self, now: datetime, half_life: timedelta) -> dict[UserId, FairShareUsage]:
        """By active user, from ended reservations; use one half-life ago counts half."""
        ...

    async def issue_key(self, user_id: UserId, ttl: timedelta | None, description: str) -> IssuedKey:
        """Raises Forbidden for a disabled user."""
        ...

    async def find_key(self, secret: str) -> ApiKey | None:
        """The key, if it is active, not expired, and its user active."""
        ...

    async def rotate_key(self, key_id: int, ttl: timedelta | None) -> IssuedKey:
        """Issues a new key and revokes this one, in one transaction. A key from a login keeps its expiry."""
        ...

    async def revoke_key(self, key_id: int) -> bool:
        """Whether it was active before."""
        ...


@dataclass(frozen=True, slots=True)
class AccessChange:
    """A key, or all keys of a user, may have changed. Both None: any key may have."""

    key_id: int | None = None
    user_id: int | None = None


class AccessChanges(Protocol):
    def attach(self, on_change: Callable[[AccessChange], None]) -> None:
        """Calls `on_change` for every change, and with an empty one if some may have been missed."""
        ...

    def is_fresh(self) -> bool:
        """Whether all changes older than a second have been received. Calling it keeps the subscription active."""
        ...


class NoAccessChanges:
    """No notifications: caches of keys must be refreshed every second."""

    def attach(self, on_change: Callable[[AccessChange], None]) -> None:
        return None

    def is_fresh(self) -> bool:
        return False


NO_ACCESS_CHANGES = NoAccessChanges()
