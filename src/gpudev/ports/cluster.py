"""Where dev servers run, its nodes and machines, and what is published of them."""

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
    """The cloud's volume that a disk's files are on right now. It changes when a disk is restored or moved."""

    volume_id: str
    size_gb: int
    zone: str


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """Everything needed to start a dev server. All of it is data; none of it ever becomes script text."""

    reservation_id: ReservationId
    pod_name: str
    user_id: UserId
    username: str
    gpu_type: str
    gpu_count: int
    shares: tuple[NodeShare, ...]
    ssh_public_keys: tuple[str, ...]
    disk_id: DiskId | None
    """The owner's disk that becomes /home/dev; None: scratch that ends with the reservation."""
    disk_name: str | None
    image: str | None = None
    name: str | None = None
    expires_at: datetime | None = None
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What the owner wants to find there, secrets among it. What the system says wins."""
    dotfiles: str | None = field(default=None, repr=False)
    """The owner's git repository, cloned and installed by the dev server's user once it is ready."""
    startup_script: str | None = field(default=None, repr=False)
    """The owner's program, run after that."""
    volume: HomeVolume | None = None
    """Of the disk, made ready before anything starts."""
    jupyter: JupyterSpec | None = field(default=None, repr=False)
    """None: Jupyter does not run there."""


class ServerPhase(StrEnum):
    STARTING = "starting"
    READY = "ready"
    DEAD = "dead"
    """It ran and is no more (or can never run); `reason` says why."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """A dev server (all members of a gang together) as last seen."""

    reservation_id: ReservationId
    phase: ServerPhase
    step: str | None = None
    """While starting: what is going on, in words ("starting the ssh server")."""
    reason: str | None = None
    """When dead: why, in words, with the last log lines."""
    connection: SshEndpoint | None = None
    """When ready."""
    is_restartable: bool = False
    """Dead, and it died while nobody watched (reboot, control plane down): it may be started again."""
    rejection: str | None = None
    """Why the place it was given does not take it: so far while starting, for good when dead. It never ran there."""
    node_shares: tuple[NodeShare, ...] = ()
    """What it takes of which nodes right now, where that can be seen. A reservation's row says the same; one without a
    row (an orphan) uses this until it is gone."""
    setup_outcome: str | None = None
    """When ready: what became of the owner's own set-up (dotfiles, start-up script), in words that hold nothing of it;
    None: there is none, it goes on, or nobody knows."""
    command_exit: CommandExit | None = None
    """When dead: the command it was reserved for has ended, and it ended itself with it; nothing went wrong."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A complete view, true at `at`. What is not in it does not exist; an incomplete view is never returned."""

    at: datetime
    nodes: tuple[Node, ...]
    servers: Mapping[ReservationId, ServerState]


class Cluster(Protocol):
    """All calls may be repeated and raise `Unavailable` when the cluster cannot be reached,
    `ClusterError` when it refuses."""

    @property
    def isolation(self) -> str:
        """One sentence for people: what keeps dev servers apart here."""
        ...

    async def start(self) -> None: ...

    async def close(self) -> None:
        """Let go of the cluster; dev servers go on."""
        ...

    async def observe(self) -> ClusterState: ...

    def changes(self) -> AsyncIterator[None]:
        """Yields whenever `look` would now answer differently. May yield too often, never too rarely
        (a periodic look catches what was missed)."""
        ...

    async def ensure_server(self, spec: ServerSpec) -> None:
        """Ask for the dev server, all members or none. Returns as soon as it is under way."""
        ...

    async def ensure_gone(self, reservation_id: ReservationId, *, keep_files: bool = False) -> bool:
        """Take down all that was made for it. True once everything is confirmed gone. `keep_files`: what it left on
        a disk of ours is put aside, not removed (for one that no record knows)."""
        ...

    async def home_contents(self, reservation_id: ReservationId) -> Contents | None:
        """What is in its home at this moment, where nobody but the dev server can tell. None: it cannot be told, or is
        told by the cloud. Takes seconds at most, and raises nothing: nobody's end waits for this."""
        ...

    async def apply_addons(
        self, reservation_id: ReservationId, ssh_public_keys: tuple[str, ...], jupyter: JupyterSpec | None
    ) -> JupyterStatus | None:
        """Have a running dev server let in those who have these keys, and nobody else, and run Jupyter or not, within
        seconds and without a restart. Whoever is let in no longer is sent away. Answers how Jupyter is; None
        where it is not wanted. Raises Unavailable also when there is no dev server that runs."""
        ...

    async def send_message(self, reservation_id: ReservationId, message: str) -> None:
        """Show a message in the dev server's open terminals, as well as it can be done."""
        ...


# Cordons, and messages to the people on cordoned nodes.


@dataclass(frozen=True, slots=True)
class AbsentNode:
    """Seen once, and not there now."""

    name: str
    gpu_type: str
    last_observed_at: datetime


class CordonReader(Protocol):
    async def cordons(self) -> Mapping[str, Cordon]: ...


class TerminalNotices(Protocol):
    async def take_notices(self) -> Sequence[tuple[ReservationId, str]]:
        """What is to be shown in whose terminals. Each is given out once."""
        ...


class ProcessorCordons(CordonReader, TerminalNotices, Protocol):
    """What the processor needs of them."""


class CordonStore(CordonReader, Protocol):
    """The processor hears of every change at once."""

    async def cordon(self, node: str, by: str, reason: str, *, now: datetime) -> Cordon:
        """Again: with the new reason. NotFound for a node that was never seen (one that is away is known
        for 30 days)."""
        ...

    async def uncordon(self, node: str) -> None:
        """Doing it twice is fine. NotFound for a node that was never seen."""
        ...

    async def has_taken_effect(self, nodes: Sequence[str]) -> bool:
        """Whether the processor has planned without these since they were closed, so that nobody is about to start
        there. Nodes that are away do not matter."""
        ...

    async def list_absent_nodes(self) -> Sequence[AbsentNode]: ...

    async def add_notice(self, reservation_id: ReservationId, message: str) -> None: ...


# GPU usage of reservations.


class GpuUsage(Protocol):
    async def find_usage(self, reservation: Reservation) -> Sequence[GpuUse]:
        """What was last measured, by node and number. Nothing where nobody measures, or nobody could be asked soon
        enough: it never raises, and hardly waits."""
        ...

    async def close(self) -> None: ...


class NodeStore(Protocol):
    """Nodes as the processor last saw them, for those who have no cluster at hand (the API)."""

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
        """All types, also those that are not offered: their nodes and reservations are still there."""
        ...

    async def update_gpu_type(self, name: str, *, is_active: bool | None, description: str | None) -> GpuType:
        """None: as it is. Raises NotFound."""
        ...

    async def save_gpu_types(self, types: Sequence[GpuType]) -> None:
        """Set the rows of types that the cluster itself describes (one machine)."""
        ...

    async def availability(self) -> list[AvailabilityRow]: ...

    async def publish_availability(self, lease: Lease, facts: Sequence[AvailabilityRow]) -> None: ...


class ClusterObserver(Protocol):
    """One look, for whoever does not stay."""

    async def observe(self) -> ClusterState: ...


class AvailabilityStore(Protocol):
    async def type_names(self) -> list[str]:
        """Of all types, also those that are not offered."""
        ...

    async def availability(self) -> list[AvailabilityRow]: ...

    async def write_if_newer(self, row: AvailabilityRow) -> bool:
        """False: the row holds facts that were true later than these."""
        ...


@dataclass(frozen=True, slots=True)
class NodeMachine:
    node: str
    machine: str
    """The cloud's name of it; empty where the cluster does not know."""


@dataclass(frozen=True, slots=True)
class NodePod:
    """One of the dev servers' namespace."""

    name: str
    uid: str


class ClusterMachines(Protocol):
    """Raises as above."""

    async def nodes(self) -> Sequence[NodeMachine]: ...

    async def pods_on(self, node: str) -> Sequence[NodePod]:
        """Of the dev servers' namespace, also those that are about to end."""
        ...

    async def remove_pod(self, pod: NodePod) -> None:
        """At once, without asking its node: whatever it was doing, it is over for the cluster."""
        ...
