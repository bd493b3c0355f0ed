"""Replacing the machines of the cloud's groups of nodes, and which node of the cluster runs on which machine.

Nothing here knows of reservations: whoever asks has made sure that nobody is there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gpudev.ports.cloud import NodeGroup


class RefreshState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    """Or it was called off: not all machines are new."""


@dataclass(frozen=True, slots=True)
class MachineRefresh:
    """One replacement of all machines of a group, old ones by new ones of its present template."""

    refresh_id: str
    state: RefreshState
    percent: int
    detail: str
    """The cloud's own words for how it stands."""


class NodeGroups(Protocol):
    """All calls raise `Unavailable` when the cloud cannot be asked, and `ClusterError` when it refuses."""

    async def node_groups(self, prefix: str) -> list[NodeGroup]: ...

    async def machines(self, group: str) -> Sequence[str]:
        """By the cloud's own names. NotFound: there is no such group."""
        ...

    async def last_refresh(self, group: str) -> MachineRefresh | None:
        """The latest there was. None: none is known. (The cloud forgets them after some weeks.)"""
        ...

    async def ensure_refresh(self, group: str, *, keep_percent: int, warmup_seconds: int) -> MachineRefresh:
        """Begins one, unless one is under way: then that one. So many of its machines stay in service throughout; a
        new one counts after its warm-up."""
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
