"""What is wanted inside dev servers, and how far it is true."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from gpudev.domain.ids import ReservationId
from gpudev.domain.sessions.addons import ExtraUser, Interior, JupyterSeen
from gpudev.ports.reservations import Change


@dataclass(frozen=True, slots=True)
class JupyterSecrets:
    token: str
    public_key: str
    private_key: str


@dataclass(frozen=True, slots=True)
class Noted:
    """What came of making an interior true, for the version of it that was tried."""

    reservation_id: ReservationId
    wanted: int
    trouble: str | None
    """None: it is true now."""
    jupyter: JupyterSeen | None
    """None: not wanted, or not known."""
    due_at: datetime | None
    """When to look at it again; None: when it is changed."""


class InteriorView(Protocol):
    async def find(self, reservation_id: ReservationId) -> Interior | None:
        """None: nothing was ever wanted but what was reserved."""
        ...


class InteriorStore(InteriorView, Protocol):
    """For the API. Every change of what is wanted comes with a guarded change of its reservation, in one transaction;
    Stale when that is no longer true. The processor hears of it at once."""

    async def add_users(self, change: Change, users: Sequence[ExtraUser], *, now: datetime) -> Interior:
        """Who is there already is there with these keys. LimitReached for more than MOST_USERS."""
        ...

    async def remove_user(self, change: Change, github_user: str, *, now: datetime) -> Interior: ...

    async def want_jupyter(self, change: Change, secrets: JupyterSecrets, *, now: datetime) -> Interior:
        """Anew, where it is wanted already."""
        ...

    async def drop_jupyter(self, change: Change, *, now: datetime) -> Interior: ...


class InteriorWork(InteriorView, Protocol):
    """For the processor."""

    async def due(self, now: datetime, limit: int) -> Sequence[ReservationId]:
        """Of active reservations, the longest due first."""
        ...

    async def next_due(self) -> datetime | None: ...

    async def note(self, noted: Noted, *, now: datetime) -> None:
        """If something else is wanted by now, or was made true meanwhile, it is due at once."""
        ...

    async def look_again(self, reservation_id: ReservationId, *, now: datetime) -> None:
        """Its dev server is made anew: what was true in the one before may not be in this one."""
        ...


class JupyterKeys(Protocol):
    """For whoever lets people through to Jupyter."""

    async def find_secrets(self, reservation_id: ReservationId) -> JupyterSecrets | None:
        """None: it is not wanted there."""
        ...
