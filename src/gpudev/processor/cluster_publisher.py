"""Publishes what the planning processor sees, for those who have no cluster at hand: nodes and availability."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpudev.domain.cluster import Node
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.cluster.reconcile_availability import GroupsOfTypes, plan_availability
from gpudev.ports.cluster import ClusterSeen
from gpudev.ports.reservations import AvailabilityRow, CatalogueStore, Lease, NodeStore

_AT_LEAST_EVERY = timedelta(seconds=30)
"""Also without a change, so that the age people see stays small."""


@dataclass(slots=True)
class GroupsSeen:
    """The cloud's groups of nodes as last seen, kept up to date by whoever asks the cloud."""

    has_cloud: bool = False
    groups: GroupsOfTypes | None = None
    """None: there is no cloud, or it has not answered yet."""


class Publisher:
    def __init__(self, nodes: NodeStore, catalogue: CatalogueStore, groups: GroupsSeen | None = None) -> None:
        self._groups = groups or GroupsSeen()
        self._nodes = nodes
        self._catalogue = catalogue
        self._hostname = socket.gethostname()[:100]
        self._last_nodes: tuple[Node, ...] | None = None
        self._last_facts: list[AvailabilityRow] = []
        self._at: datetime | None = None

    async def publish(
        self, lease: Lease, seen: ClusterSeen, reservations: Sequence[Reservation], now: datetime
    ) -> None:
        stale = self._at is None or now - self._at >= _AT_LEAST_EVERY
        facts = await self._facts(seen, reservations)
        if stale or seen.nodes != self._last_nodes:
            await self._nodes.publish(lease, seen.nodes, seen.at)
            self._last_nodes = seen.nodes
        if stale or facts != self._last_facts:
            stamped = [replace(fact, updated_at=now, updated_by=self._hostname) for fact in facts]
            await self._catalogue.publish_availability(lease, stamped)
            self._last_facts = facts
        if stale:
            self._at = now

    async def _facts(self, seen: ClusterSeen, reservations: Sequence[Reservation]) -> list[AvailabilityRow]:
        holdings = [holding for r in reservations if (holding := r.holding()) is not None]
        rows = []
        for gpu_type in (await self._catalogue.catalogue()).values():
            nodes = [node for node in seen.nodes if node.gpu_type == gpu_type.name]
            # Whatever is held on its nodes, by whichever type: a node may have come back as another one.
            held = holdings if nodes else []
            planned = plan_availability(gpu_type, nodes, held, self._groups.groups, at=seen.at, by=self._hostname)
            rows.append(replace(planned.row, updated_at=None, updated_by=None))
        if self._groups.has_cloud and self._groups.groups is None:
            return await self._with_groups_as_known(rows)
        return rows

    async def _with_groups_as_known(self, rows: Sequence[AvailabilityRow]) -> list[AvailabilityRow]:
        """What only the cloud could tell stays as it was last told."""
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
