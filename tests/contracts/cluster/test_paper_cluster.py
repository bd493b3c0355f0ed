"""The cluster on paper keeps the promises of the real ones."""

import contextlib
from collections.abc import AsyncIterator

import pytest

from contracts.cluster_contract import ClusterContract, ClusterWorld
from gpudev.domain.cluster import Node, NodeShare
from gpudev.domain.ids import ReservationId, UserId, new_reservation_id, pod_name
from gpudev.ports.cluster import ServerSpec
from support.clock import ManualClock
from support.paper_cluster import PaperCluster


class PaperWorld(ClusterWorld):
    def __init__(self, clock: ManualClock) -> None:
        self.cluster: PaperCluster = PaperCluster([Node(name, "h100", 8) for name in "abc"], clock)
        self._watched = True

    def spec(self, *, nodes: int = 1) -> ServerSpec:
        rid = new_reservation_id()
        shares = tuple(NodeShare(rank, "abc"[rank], 1) for rank in range(nodes))
        return ServerSpec(rid, pod_name(rid), UserId(1), "ada", "h100", nodes, shares, (), None, None)

    async def kill(self, reservation_id: ReservationId) -> None:
        self.cluster.kill(reservation_id, unwatched=not self._watched)

    @contextlib.asynccontextmanager
    async def nobody_watching(self) -> AsyncIterator[None]:
        self._watched = False
        yield
        self._watched = True


class TestPaperCluster(ClusterContract):
    @pytest.fixture
    async def world(self, clock: ManualClock) -> AsyncIterator[ClusterWorld]:
        yield PaperWorld(clock)
