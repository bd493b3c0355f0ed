"""Publishes nodes and availability, for services that cannot observe the cluster."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpudev.domain.cluster import Node
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.cluster.reconcile_availability import NodeGroupsByType, plan_availability
from gpudev.ports.cluster import AvailabilityRow, CatalogueStore, ClusterState, NodeStore
from gpudev.ports.leases import Lease

_AT_LEAST_EVERY = timedelta(seconds=30)
"""Also without a change, so that the displayed age stays small."""


@dataclass(slots=True)
class NodeGroupsState:
    """The cloud's node groups as last read; the availability reconciler updates it."""

    has_cloud: bool = False
    groups: NodeGroupsByType | None = None
    """None: no cloud, or no answer yet."""


class ClusterPublisher:
    def __init__(self, nodes: NodeStore, catalogue: CatalogueStore, groups: NodeGroupsState | None = None) -> None:
        self._groups = groups or NodeGroupsState()
        self._nodes = nodes
        self._catalogue = catalogue
        self._hostname = socket.gethostname()[:100]
        self._last_nodes: tuple[Node, ...] | None = None
        self._last_rows: list[AvailabilityRow] = []
        self._at: datetime | None = None

    async def publish(
        self, lease: Lease, state: ClusterState, reservations: Sequence[Reservation], now: datetime
    ) -> None:
        stale = self._at is None or now - self._at >= _AT_LEAST_EVERY
        facts = await self._availability_rows(state, reservations)
        if stale or state.nodes != self._last_nodes:
            await self._nodes.publish_nodes(lease, state.nodes, state.at)
            self._last_nodes = state.nodes
        if stale or facts != self._last_rows:
            stamped = [replace(fact, updated_at=now, updated_by=self._hostname) for fact in facts]
            await self._catalogue.publish_availability(lease, stamped)
            self._last_rows = facts
        if stale:
            self._at = now

    async def _availability_rows(
        self, state: ClusterState, reservations: Sequence[Reservation]
    ) -> list[AvailabilityRow]:
        allocations = [allocation for r in reservations if (allocation := r.allocation()) is not None]
        rows = []
        for gpu_type in (await self._catalogue.catalogue()).values():
            nodes = [node for node in state.nodes if node.gpu_type == gpu_type.name]
            # Allocations of any type: a node may have come back with another type.
            held = allocations if nodes else []
            planned = plan_availability(gpu_type, nodes, held, self._groups.groups, at=state.at, by=self._hostname)
            rows.append(replace(planned.row, updated_at=None, updated_by=None))
        if self._groups.has_cloud and self._groups.groups is None:
            return await self._with_recorded_groups(rows)
        return rows

    async def _with_recorded_groups(self, rows: Sequence[AvailabilityRow]) -> list[AvailabilityRow]:
        """Columns that only the cloud knows keep their last values."""
        before = {row.gpu_type: row for row in await self._catalogue.availability()}
        kept = []
        for row in rows:
            known = before.get(row.gpu_type)
            if known is not None and known.updated_at is not None:
                total = row.total_cluster_gpus or known.total_cluster_gpus
                row = replace(  # noqa: PLW2901
                    row,
                    total_cluster_gpus=total,
                    running_instances=known.running_instances,
                    desired_capacity=known.desired_capacity,
                )
            kept.append(row)
        return kept
