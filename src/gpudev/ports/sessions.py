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
    """The result of applying addons, for the generation that was tried."""

    reservation_id: ReservationId
    generation: int
    error: str | None
    """None: applied."""
    jupyter: JupyterStatus | None
    """None: disabled or unknown."""
    due_at: datetime | None
    """When to check again. None: on the next change."""


class AddonView(Protocol):
    async def find_addons(self, reservation_id: ReservationId) -> Addons | None:
        """None: never requested."""
        ...


class AddonStore(AddonView, Protocol):
    """Used by the API. Each change of the desired state includes a guarded change of the reservation, in one
    transaction; raises Stale. The processor is notified."""

    async def add_users(self, change: Change, users: Sequence[Collaborator], *, now: datetime) -> Addons:
        """Replaces the keys of existing ones. Raises LimitReached for more than MAX_COLLABORATORS."""
        ...

    async def remove_user(self, change: Change, github_user: str, *, now: datetime) -> Addons: ...

    async def enable_jupyter(self, change: Change, secrets: JupyterSecrets, *, now: datetime) -> Addons:
        """Again, if it is enabled already."""
        ...

    async def disable_jupyter(self, change: Change, *, now: datetime) -> Addons: ...


class AddonWork(AddonView, Protocol):
    """Used by the processor."""

    async def due(self, now: datetime, limit: int) -> Sequence[ReservationId]:
        """Of active reservations, longest due first."""
        ...

    async def next_due(self) -> datetime | None: ...

    async def record_result(self, result: AddonResult, *, now: datetime) -> None:
        """If the desired state changed meanwhile, it is due again at once."""
        ...

    async def mark_due(self, reservation_id: ReservationId, *, now: datetime) -> None:
        """Its dev server is created again, so its addons must be applied again."""
        ...


class JupyterSecretStore(Protocol):
    """Used by the Jupyter proxy."""

    async def find_secrets(self, reservation_id: ReservationId) -> JupyterSecrets | None:
        """None: Jupyter is disabled."""
        ...


# Personalization, kept from submit to release. The API may write it and not read it.


class PersonalizationStore(Protocol):
    async def load_personalization(self, reservation_id: ReservationId) -> Personalization:
        """Empty if there is none, or if the reservation is released."""
        ...


# Session tokens. Only hashes are stored.


class ProxyTokenStore(Protocol):
    async def save_token(
        self, digest: bytes, grant: Grant, *, ends_at: datetime, now: datetime, purpose: TokenPurpose = TokenPurpose.SSH
    ) -> None:
        """Also deletes expired ones."""
        ...

    async def find_token(
        self, digest: bytes, purpose: TokenPurpose = TokenPurpose.SSH
    ) -> tuple[Grant, datetime] | None:
        """The grant, and until when it opens sessions. None: unknown, or for another purpose."""
        ...

    async def consume_token(self, digest: bytes, purpose: TokenPurpose) -> tuple[Grant, datetime] | None:
        """The same, and deletes it."""
        ...

    async def load_grant_states(self, grants: Sequence[Grant]) -> dict[Grant, GrantState]:
        """In one query."""
        ...
