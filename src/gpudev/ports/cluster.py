"""The cluster that runs dev servers, its nodes and machines, and the stores of published nodes and availability."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from gpudev.domain.cluster import Catalogue, Cordon, GpuType, GpuUse, Node, NodeShare
from gpudev.domain.disks.contents import Contents
from gpudev.domain.ids import DiskId, ReservationId, UserId
from gpudev.domain.reservations.command_exit import CommandExit
from gpudev.domain.reservations.reservation import Reservation, SshEndpoint
from gpudev.domain.sessions.addons import JupyterSpec, JupyterStatus
from gpudev.ports.leases import Lease


@dataclass(frozen=True, slots=True)
class HomeVolume:
    """The cloud volume that currently has a disk's files. It changes when a disk is restored or moved."""

    volume_id: str
    size_gb: int
    zone: str


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """Everything needed to start a dev server. Its values never become script text."""

    reservation_id: ReservationId
    pod_name: str
    user_id: UserId
    username: str
    gpu_type: str
    gpu_count: int
    shares: tuple[NodeShare, ...]
    ssh_public_keys: tuple[str, ...]
    disk_id: DiskId | None
    """The disk mounted at /home/dev. None: scratch space."""
    disk_name: str | None
    image: str | None = None
    name: str | None = None
    expires_at: datetime | None = None
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The owner's variables, possibly secrets. The system's own variables take precedence."""
    dotfiles: str | None = field(default=None, repr=False)
    """The owner's git repository, cloned and installed by the dev server's user after the start."""
    startup_script: str | None = field(default=None, repr=False)
    """The owner's start-up script, run after that."""
    volume: HomeVolume | None = None
    """The disk's volume, made ready before the launch."""
    jupyter: JupyterSpec | None = field(default=None, repr=False)
    """None: no Jupyter."""


class ServerPhase(StrEnum):
    STARTING = "starting"
    READY = "ready"
    DEAD = "dead"
    """It has ended (or can never run); see `reason`."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """A dev server (all members of a gang together) as last observed."""

    reservation_id: ReservationId
    phase: ServerPhase
    step: str | None = None
    """While starting: the current step, for people ("starting the ssh server")."""
    reason: str | None = None
    """When dead: the cause, for people, with the last log lines."""
    connection: SshEndpoint | None = None
    """When ready."""
    is_restartable: bool = False
    """Dead, and it died unobserved (reboot, control plane down): it may be started again."""
    rejection: str | None = None
    """Why its placement was rejected: while starting so far, when dead finally. It never ran there."""
    node_shares: tuple[NodeShare, ...] = ()
    """The units it uses by node, if visible. Needed for orphans, which have no row."""
    setup_outcome: str | None = None
    """When ready: the result of the personalization, for people, without its contents. None: none, still running, or
    unknown."""
    command_exit: CommandExit | None = None
    """When dead: its detached command has exited, and the dev server with it. Not a failure."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A complete observation at time `at`. What is not in it does not exist; an incomplete one is never returned."""

    at: datetime
    nodes: tuple[Node, ...]
    servers: Mapping[ReservationId, ServerState]


class Cluster(Protocol):
    """All calls are idempotent. They raise `Unavailable` if the cluster cannot be reached, `ClusterError` if it rejects
    the call."""

    @property
    def isolation(self) -> str:
        """One sentence for people: how dev servers are isolated from each other here."""
        ...

    async def start(self) -> None: ...

    async def close(self) -> None:
        """Closes connections; dev servers keep running."""
        ...

    async def observe(self) -> ClusterState: ...

    def changes(self) -> AsyncIterator[None]:
        """Yields whenever `observe` would return something else. May yield too often, never too rarely (a periodic
        observation covers lost events)."""
        ...

    async def ensure_server(self, spec: ServerSpec) -> None:
        """Creates the dev server, all members or none. Does not wait for readiness."""
        ...

    async def ensure_gone(self, reservation_id: ReservationId, *, keep_files: bool = False) -> bool:
        """Removes everything created for it. True: confirmed gone. `keep_files`: local files are set aside, not removed
        (for a dev server that no record knows)."""
        ...

    async def home_contents(self, reservation_id: ReservationId) -> Contents | None:
        """The current contents of its home, if only the dev server can list them. None: unknown, or the cloud lists
        snapshots. Takes seconds at most and never raises, because teardowns wait for it."""
        ...

    async def apply_addons(
        self, reservation_id: ReservationId, ssh_public_keys: tuple[str, ...], jupyter: JupyterSpec | None
    ) -> JupyterStatus | None:
        """Makes a running dev server accept exactly these keys and run Jupyter or not, within seconds and without a
        restart. Sessions of removed keys are closed. Returns Jupyter's status; None: disabled. Also raises Unavailable
        if no dev server runs."""
        ...

    async def send_message(self, reservation_id: ReservationId, message: str) -> None:
        """Shows a message in the dev server's open terminals (best effort)."""
        ...


# Cordons, and messages to users on cordoned nodes.


@dataclass(frozen=True, slots=True)
class AbsentNode:
    """A known node that is not there now."""

    name: str
    gpu_type: str
    last_observed_at: datetime


class CordonReader(Protocol):
    async def cordons(self) -> Mapping[str, Cordon]: ...


class TerminalNotices(Protocol):
    async def take_notices(self) -> Sequence[tuple[ReservationId, str]]:
        """Messages for terminals, by reservation. Each is returned once."""
        ...


class ProcessorCordons(CordonReader, TerminalNotices, Protocol):
    """The processor's view of cordons."""


class CordonStore(CordonReader, Protocol):
    """Every change notifies the processor."""

    async def cordon(self, node: str, by: str, reason: str, *, now: datetime) -> Cordon:
        """Repeated: replaces the reason. Raises NotFound for an unknown node (absent nodes are known for 30 days)."""
        ...

    async def uncordon(self, node: str) -> None:
        """Idempotent. Raises NotFound for an unknown node."""
        ...

    async def has_taken_effect(self, nodes: Sequence[str]) -> bool:
        """Whether the processor has planned without these nodes since they were closed, so that nothing is about to
        start there. Absent nodes do not matter."""
        ...

    async def list_absent_nodes(self) -> Sequence[AbsentNode]: ...

    async def add_notice(self, reservation_id: ReservationId, message: str) -> None: ...


# GPU usage of reservations.


class GpuUsage(Protocol):
    async def find_usage(self, reservation: Reservation) -> Sequence[GpuUse]:
        """The last measurements, by node and GPU index. Empty if not measured or not available in time: it never
        raises, and hardly waits."""
        ...

    async def close(self) -> None: ...


class NodeStore(Protocol):
    """Nodes as the processor last observed them, for services without cluster access (the API)."""

    async def publish_nodes(self, lease: Lease, nodes: Sequence[Node], observed_at: datetime) -> None: ...

    async def nodes(self, gpu_type: str | None = None) -> tuple[list[Node], datetime | None]: ...


@dataclass(frozen=True, slots=True)
class AvailabilityRow:
    """One type's availability columns, as last observed."""

    gpu_type: str
    total_cluster_gpus: int
    available_gpus: int
    max_reservable: int
    full_nodes_available: int
    running_instances: int
    desired_capacity: int
    max_per_node: int
    updated_at: datetime | None
    updated_by: str | None


class CatalogueStore(Protocol):
    async def catalogue(self) -> Catalogue:
        """All types, including inactive ones: their nodes and reservations still exist."""
        ...

    async def update_gpu_type(self, name: str, *, is_active: bool | None, description: str | None) -> GpuType:
        """None: unchanged. Raises NotFound."""
        ...

    async def save_gpu_types(self, types: Sequence[GpuType]) -> None:
        """Writes the types that the cluster itself describes (one machine)."""
        ...

    async def availability(self) -> list[AvailabilityRow]: ...

    async def publish_availability(self, lease: Lease, facts: Sequence[AvailabilityRow]) -> None: ...


class ClusterObserver(Protocol):
    """A single observation, for short-lived commands."""

    async def observe(self) -> ClusterState: ...


class AvailabilityStore(Protocol):
    async def type_names(self) -> list[str]:
        """All types, including inactive ones."""
        ...

    async def availability(self) -> list[AvailabilityRow]: ...

    async def write_if_newer(self, row: AvailabilityRow) -> bool:
        """False: the row has newer facts."""
        ...


@dataclass(frozen=True, slots=True)
class NodeMachine:
    node: str
    machine: str
    """The cloud's name of the machine. Empty: unknown to the cluster."""


@dataclass(frozen=True, slots=True)
class NodePod:
    """A pod in the dev servers' namespace."""

    name: str
    uid: str


class ClusterMachines(Protocol):
    """Raises as `Cluster`."""

    async def nodes(self) -> Sequence[NodeMachine]: ...

    async def pods_on(self, node: str) -> Sequence[NodePod]:
        """In the dev servers' namespace, including terminating ones."""
        ...

    async def remove_pod(self, pod: NodePod) -> None:
        """Force-deletes it, without waiting for its node."""
        ...
