"""Addons of a dev server: collaborators and Jupyter. They can change while it runs."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from gpudev.domain.ids import ReservationId

MAX_COLLABORATORS = 20
"""Beside the owner, on one dev server."""


OUTDATED_SERVER_ERROR = (
    "this dev server was started by an older version of gpu-dev, which cannot do that: reserve a new one"
)


class JupyterState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class JupyterStatus:
    state: JupyterState
    reason: str | None = None
    """When failed: why, and what can be done about it."""


@dataclass(frozen=True, slots=True)
class JupyterSpec:
    """What a dev server is told about the Jupyter it shall run."""

    token: str
    """Jupyter's own: whoever has it may do everything there."""
    public_key: str
    """Whoever has its other half is let through to Jupyter's port, and to nothing else."""
    base_url: str
    """Where people will find it: a path that begins and ends with a slash."""


@dataclass(frozen=True, slots=True)
class Collaborator:
    """Somebody who may log in beside the owner, with the keys that GitHub published when they were added."""

    github_user: str
    ssh_public_keys: tuple[str, ...]
    added_by: str
    added_at: datetime


@dataclass(frozen=True, slots=True)
class JupyterAddon:
    """One that is wanted."""

    spec: JupyterSpec
    status: JupyterStatus


@dataclass(frozen=True, slots=True)
class Addons:
    reservation_id: ReservationId
    generation: int
    """Goes up with every change of what is wanted."""
    observed_generation: int
    """What was last made true."""
    attempts: int
    """In vain, since then."""
    error: str | None
    collaborators: tuple[Collaborator, ...]
    jupyter: JupyterAddon | None

    @property
    def is_applied(self) -> bool:
        return self.observed_generation >= self.generation


def jupyter_path(reservation_id: ReservationId) -> str:
    return f"/v1/jobs/{reservation_id}/jupyter/"
