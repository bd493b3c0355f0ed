"""Publishes what the planning processor sees, for those who have no cluster at hand: nodes and availability."""

import socket
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from gpudev.domain.capacity import Node
from gpudev.domain.reservation import Reservation
from gpudev.planning.availability import availability
from gpudev.ports.cluster import ClusterSeen
from gpudev.ports.stores import AvailabilityRow, CatalogueStore, Lease, NodeStore

_AT_LEAST_EVERY = timedelta(seconds=30)
"""Also without a change, so that the age people see stays small."""


class Publisher:
    def __init__(self, nodes: NodeStore, catalogue: CatalogueStore) -> None:
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
            now_free = availability(gpu_type, nodes, holdings if nodes else [])
            rows.append(
                AvailabilityRow(
                    gpu_type=gpu_type.name,
                    total_cluster_gpus=now_free.total,
                    available_gpus=now_free.available,
                    max_reservable=now_free.max_reservable,
                    full_nodes_available=now_free.full_nodes_available,
                    running_instances=now_free.running_instances,
                    desired_capacity=now_free.running_instances,
                    max_per_node=now_free.max_per_node,
                    updated_at=None,
                    updated_by=None,
                )
            )
        return rows
