"""Addons of a dev server: collaborators and Jupyter. They can change while it runs."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from gpudev.domain.ids import ReservationId

MAX_COLLABORATORS = 20
"""Per dev server, not counting the owner."""

JUPYTER_ENVIRONMENT = ".local/share/gpu-dev/jupyter"
"""In the home: the Python environment that `gpu-dev jupyter enable --install` makes for Jupyter Lab."""
INSTALL_JUPYTER_COMMAND = "gpu-dev jupyter enable --install"

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
    """When failed: the cause and the remedy."""


@dataclass(frozen=True, slots=True)
class JupyterSpec:
    """What a dev server needs to run Jupyter."""

    token: str
    """Jupyter's own token. It grants full access."""
    public_key: str
    """Its private key opens a tunnel to Jupyter's port and to nothing else."""
    base_url: str
    """The public path, with a leading and a trailing slash."""


@dataclass(frozen=True, slots=True)
class Collaborator:
    """A colleague who may log in, with the keys that GitHub listed at the time of adding."""

    github_user: str
    ssh_public_keys: tuple[str, ...]
    added_by: str
    added_at: datetime


@dataclass(frozen=True, slots=True)
class JupyterAddon:
    """Jupyter as requested, and its status."""

    spec: JupyterSpec
    status: JupyterStatus


@dataclass(frozen=True, slots=True)
class Addons:
    reservation_id: ReservationId
    generation: int
    """Increases with every change of the desired state."""
    observed_generation: int
    """The last applied generation."""
    attempts: int
    """Failed attempts since then."""
    error: str | None
    collaborators: tuple[Collaborator, ...]
    jupyter: JupyterAddon | None

    @property
    def is_applied(self) -> bool:
        return self.observed_generation >= self.generation


def jupyter_path(reservation_id: ReservationId) -> str:
    return f"/v1/jobs/{reservation_id}/jupyter/"
