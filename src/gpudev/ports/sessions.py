"""Addons, personalization and session tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations.changes import Change
from gpudev.domain.reservations.personalization import Personalization
from gpudev.domain.sessions.addons import Addons, Collaborator, JupyterStatus
from gpudev.domain.sessions.grants import Grant, GrantState, TokenPurpose


@dataclass(frozen=True, slots=True)
class JupyterSecrets:
    token: str
    public_key: str
    private_key: str


@dataclass(frozen=True, slots=True)
class AddonResult:
    """What came of making an interior true, for the version of it that was tried."""

    reservation_id: ReservationId
    generation: int
    error: str | None
    """None: it is true now."""
    jupyter: JupyterStatus | None
    """None: not wanted, or not known."""
    due_at: datetime | None
    """When to look at it again; None: when it is changed."""


class AddonView(Protocol):
    async def find_addons(self, reservation_id: ReservationId) -> Addons | None:
        """None: nothing was ever wanted but what was reserved."""
        ...


class AddonStore(AddonView, Protocol):
    """For the API. Every change of what is wanted comes with a guarded change of its reservation, in one transaction;
    Stale when that is no longer true. The processor hears of it at once."""

    async def add_users(self, change: Change, users: Sequence[Collaborator], *, now: datetime) -> Addons:
        """Who is there already is there with these keys. LimitReached for more than MOST_USERS."""
        ...

    async def remove_user(self, change: Change, github_user: str, *, now: datetime) -> Addons: ...

    async def enable_jupyter(self, change: Change, secrets: JupyterSecrets, *, now: datetime) -> Addons:
        """Anew, where it is wanted already."""
        ...

    async def disable_jupyter(self, change: Change, *, now: datetime) -> Addons: ...


class AddonWork(AddonView, Protocol):
    """For the processor."""

    async def due(self, now: datetime, limit: int) -> Sequence[ReservationId]:
        """Of active reservations, the longest due first."""
        ...

    async def next_due(self) -> datetime | None: ...

    async def record_result(self, result: AddonResult, *, now: datetime) -> None:
        """If something else is wanted by now, or was made true meanwhile, it is due at once."""
        ...

    async def mark_due(self, reservation_id: ReservationId, *, now: datetime) -> None:
        """Its dev server is made anew: what was true in the one before may not be in this one."""
        ...


class JupyterSecretStore(Protocol):
    """For whoever lets people through to Jupyter."""

    async def find_secrets(self, reservation_id: ReservationId) -> JupyterSecrets | None:
        """None: it is not wanted there."""
        ...


# Personalization, kept from submit to release. The API may write it and not read it.


class PersonalizationStore(Protocol):
    async def load_personalization(self, reservation_id: ReservationId) -> Personalization:
        """An empty one where nothing was brought, or where the reservation is released."""
        ...


# Session tokens. Only hashes are stored.


class ProxyTokenStore(Protocol):
    async def save_token(
        self, digest: bytes, grant: Grant, *, ends_at: datetime, now: datetime, purpose: TokenPurpose = TokenPurpose.SSH
    ) -> None:
        """Also forgets those that ended."""
        ...

    async def find_token(
        self, digest: bytes, purpose: TokenPurpose = TokenPurpose.SSH
    ) -> tuple[Grant, datetime] | None:
        """What it grants and until when it opens sessions; None: it is none, or one for something else."""
        ...

    async def consume_token(self, digest: bytes, purpose: TokenPurpose) -> tuple[Grant, datetime] | None:
        """The same, and it is none any more."""
        ...

    async def load_grant_states(self, grants: Sequence[Grant]) -> dict[Grant, GrantState]:
        """All in one question."""
        ...
