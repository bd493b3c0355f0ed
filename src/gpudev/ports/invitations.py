"""Invitations as they are kept, and ID tokens that were used."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from gpudev.domain.access.invitations import Invitation
from gpudev.domain.access.users import Role

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
