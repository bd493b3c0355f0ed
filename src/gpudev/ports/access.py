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
    """Somebody whom an identity provider has just vouched for."""

    username: str
    provider: str
    """Which kind of provider: "aws", "oidc", "invitation"."""
    subject: str
    """The provider's own lasting name for them (account and role session, issuer and subject). A user name that is
    bound to one subject is never given to another."""
    email: str | None = None
    role: Role | None = None
    """What the provider's groups say. None: it does not say; what is recorded here stands."""


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A request to AWS as its sender signed it: a stranger's words, until they are checked."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: str


class IdentityProvider(Protocol[_Proof_contra]):
    """Turns what a stranger brings along (a signed request, a token) into a person."""

    async def identify(self, proof: _Proof_contra) -> Person:
        """Raises Unauthenticated when nothing is proven, Forbidden when somebody is proven who may not come in,
        Unavailable when the provider does not answer."""
        ...


class AccountStore(Protocol):
    async def enrol(self, person: Person, *, came_from: str | None, now: datetime) -> User:
        """The user this person is: the one bound to their subject, else a new one. Their role is set to what the
        provider says, if it says one; only the last active admin stays one whatever it says. Raises Forbidden
        when the user is disabled, or when the name (in whatever case) is somebody else's."""
        ...

    async def expect_login(self, username: str, provider: str) -> None:
        """Let whom this provider next calls by this name become this user, who was made here. NotFound when there is
        no such user, Conflict when it is bound to somebody already."""
        ...


@dataclass(frozen=True, slots=True)
class Nonce:
    value: str
    expires_at: datetime


class NonceStore(Protocol):
    """Nonces that are good once, however many API processes there are."""

    async def issue(self, ttl: timedelta, *, now: datetime) -> Nonce:
        """Raises LimitReached while too many are unspent."""
        ...

    async def spend(self, value: str, *, now: datetime) -> bool:
        """Whether it was one of ours, unspent and in time. It is none any more."""
        ...


class KeyAuthenticator(Protocol):
    async def authenticate(self, secret: str) -> ApiKey:
        """Raises Unauthenticated."""
        ...


class PublicKeySource(Protocol):
    async def public_keys(self, github_user: str) -> Sequence[str]:
        """The keys GitHub publishes for a user. Raises Invalid when there are none, Unavailable when GitHub
        does not answer."""
        ...


# Invitations, and ID tokens that were used.


INVITATION_PROVIDER = "invitation"
"""The provider of people who came by an invitation."""


@dataclass(frozen=True, slots=True)
class NewInvitation:
    invitation: Invitation
    secret: str
    """Shown once: only its hash is kept."""


@dataclass(frozen=True, slots=True)
class IdToken:
    """An ID token as a client brings it: a stranger's words, until they are checked."""

    token: str
    nonce: str | None
    """What it must answer to, where its login sent one."""


class InvitationStore(Protocol):
    async def invite(self, username: str, role: Role | None, ttl: timedelta, *, now: datetime) -> NewInvitation:
        """For somebody new, or for a user who was made here or invited before, in place of whatever invitation is still
        open for them. Conflict for a user who logs in another way or is disabled."""
        ...

    async def accept(self, secret: str, *, now: datetime) -> Invitation | None:
        """The invitation, which is used up from now on. None: there is none, or none any more."""
        ...

    async def revoke(self, username: str, *, now: datetime) -> int:
        """All open ones for this name; answers how many. NotFound when there is none."""
        ...

    async def list_invitations(self) -> list[Invitation]: ...


class UsedTokens(Protocol):
    async def use_token(self, digest: bytes, until: datetime, *, now: datetime) -> bool:
        """Note that it was used; it need not be remembered after `until`. False: it had been used before."""
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
    """Neither revoked nor past its end, and its user is active."""


class UserAdministration(Protocol):
    """Each raises NotFound when there is no such user or key, and Conflict for what would leave no active admin."""

    async def set_active(self, username: str, active: bool) -> User:
        """Disabling revokes all keys of the user: enabling them again gives none of these back."""
        ...

    async def set_role(self, username: str, role: Role) -> User: ...

    async def list_keys(self, username: str | None = None, *, ended: bool = False) -> list[KeyRecord]:
        """The newest first; with `ended`, also those that can no longer be used."""
        ...

    async def revoke_key(self, key_id: int) -> KeyRecord:
        """Revoking twice is fine."""
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
    """ "ok", or the code of the problem that was answered."""
    username: str | None = None
    key_prefix: str | None = None
    target: str | None = None
    address: str | None = None
    status: int | None = None
    request_id: str | None = None
    entry_id: int = 0
    """Given by the log; 0: not written yet."""


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """None: any. Parts of `action` and `target` will do."""

    username: str | None = None
    action: str | None = None
    target: str | None = None
    address: str | None = None
    outcome: str | None = None
    since: datetime | None = None
    after: int = 0
    """Only entries with a greater entry_id: for whoever follows."""
    limit: int = 100


class AuditLog(Protocol):
    async def append(self, entries: Sequence[AuditEntry]) -> None: ...

    async def find_entries(self, query: AuditQuery) -> list[AuditEntry]:
        """The newest `limit` of them, the oldest of these first."""
        ...


def sanitize_text(text: str, max_length: int = 200) -> str:
    """Text from outside as it may stand in a log: one line, nothing that moves a cursor or hides what follows, and no
    API key that somebody put in the wrong place."""
    kept = redact_keys(text[: 2 * max_length])
    shown = "".join(
        c if c.isprintable() and c != "\\" else c.encode("unicode_escape").decode() for c in kept[: max_length + 1]
    )
    return shown if len(shown) <= max_length else shown[: max_length - 1] + "…"


def redact_keys(text: str) -> str:
    """Of every API key, and of every token for a session, only what lists of keys show of it, too."""
    return _KEY_PATTERN.sub(lambda found: found[0][:_KEY_PREFIX_LENGTH] + "…", text) if "gpudev" in text else text


class UserStore(Protocol):
    async def add_user(self, username: str, role: Role) -> User: ...

    async def find_user(self, username: str) -> User | None: ...

    async def list_users(self) -> list[User]: ...

    async def set_weight(self, username: str, weight: float) -> None:
        """For fair share. NotFound when there is no such user."""
        ...

    async def usage(self, now: datetime, half_life: timedelta) -> dict[UserId, FairShareUsage]:
        """Of every active user, from what has ended; what ended one half-life ago counts half."""
        ...

    async def issue_key(self, user_id: UserId, ttl: timedelta | None, description: str) -> IssuedKey:
        """Raises Forbidden for a user who is disabled."""
        ...

    async def find_key(self, secret: str) -> ApiKey | None:
        """The key if it may be used now: active, not past its end, its user active."""
        ...

    async def rotate_key(self, key_id: int, ttl: timedelta | None) -> IssuedKey:
        """Issue a new key and revoke this one, in one transaction. The key of somebody whom a provider vouched for
        is replaced by one that ends when it would have ended."""
        ...

    async def revoke_key(self, key_id: int) -> bool:
        """Whether it was still in use until now."""
        ...


@dataclass(frozen=True, slots=True)
class AccessChange:
    """A key, or all keys of a user, may mean something else from now on. Both None: any key may."""

    key_id: int | None = None
    user_id: int | None = None


class AccessChanges(Protocol):
    def attach(self, on_change: Callable[[AccessChange], None]) -> None:
        """Calls `heard` for every change, and with an empty one whenever some may have been missed."""
        ...

    def is_fresh(self) -> bool:
        """Whether every change that is older than a second has been heard. Asking keeps it so."""
        ...


class NoAccessChanges:
    """Nothing is ever heard: whoever remembers keys must ask again every second."""

    def attach(self, on_change: Callable[[AccessChange], None]) -> None:
        return None

    def is_fresh(self) -> bool:
        return False


NO_ACCESS_CHANGES = NoAccessChanges()
