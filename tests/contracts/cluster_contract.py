"""What every cluster promises, whatever it is made of. An adapter's tests derive from `ClusterContract` and give it a
`world` fixture; a promise that only one kind of cluster makes is tested there."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from gpudev.domain.errors import Unavailable
from gpudev.domain.ids import ReservationId, new_reservation_id
from gpudev.ports.cluster import Cluster, ServerPhase, ServerSpec, ServerState
from support.polling import eventually_async, until_it_succeeds

PATIENCE_S = 60.0


class ClusterWorld(ABC):
    """A cluster with room for four dev servers of one GPU and, besides, one gang of two nodes."""

    cluster: Cluster
    """Started."""

    @abstractmethod
    def spec(self, *, nodes: int = 1) -> ServerSpec:
        """A dev server that fits beside the others asked for so far."""

    @abstractmethod
    async def kill(self, reservation_id: ReservationId) -> None:
        """The dev server dies, and not by the cluster's hand."""

    @abstractmethod
    def nobody_watching(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Inside, no control plane is there; after it, `cluster` is a new one that has started."""

    async def seen(self, reservation_id: ReservationId) -> ServerState | None:
        return (await self.cluster.observe()).servers.get(reservation_id)

    async def until(self, reservation_id: ReservationId, *phases: ServerPhase) -> ServerState:
        """Wait, woken by the cluster's own changes, until the dev server is in one of these phases."""
        changes = self.cluster.changes()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                seen = await self.seen(reservation_id)
                if seen is not None and seen.phase in phases:
                    return seen
                with contextlib.suppress(TimeoutError):  # a change made before we subscribed
                    await asyncio.wait_for(anext(changes), 0.5)

    async def ready(self, spec: ServerSpec) -> ServerState:
        """As the processor does it: what is not possible yet is tried again."""
        await until_it_succeeds(lambda: self.cluster.ensure_server(spec), Unavailable, within=PATIENCE_S)
        seen = await self.until(spec.reservation_id, ServerPhase.READY, ServerPhase.DEAD)
        assert seen.phase is ServerPhase.READY, seen.reason
        return seen

    async def gone(self, reservation_id: ReservationId) -> None:
        await eventually_async(lambda: self.cluster.ensure_gone(reservation_id), within=PATIENCE_S, every=0.05)


class ClusterContract:
    @pytest.fixture
    async def world(self) -> AsyncIterator[ClusterWorld]:
        raise NotImplementedError("an adapter's tests give the world")
        yield

    async def test_an_empty_cluster_shows_its_nodes_and_no_dev_server(self, world: ClusterWorld) -> None:
        seen = await world.cluster.observe()
        assert seen.nodes
        assert all(node.units > 0 and node.offers for node in seen.nodes)
        assert not seen.servers
        assert seen.at.tzinfo is not None

    async def test_what_keeps_dev_servers_apart_is_said_in_a_sentence(self, world: ClusterWorld) -> None:
        assert len(world.cluster.isolation) > 20

    async def test_a_dev_server_that_was_asked_for_becomes_ready_and_says_how_to_get_in(
        self, world: ClusterWorld
    ) -> None:
        seen = await world.ready(world.spec())
        assert seen.connection is not None
        assert seen.connection.user == "dev"
        assert seen.connection.port > 0
        assert seen.connection.host_key.startswith("ssh-")
        assert not seen.is_restartable

    async def test_asking_again_changes_nothing(self, world: ClusterWorld) -> None:
        spec = world.spec()
        first = await world.ready(spec)
        await world.cluster.ensure_server(spec)
        assert await world.seen(spec.reservation_id) == first

    async def test_asking_many_times_at_once_makes_one_dev_server(self, world: ClusterWorld) -> None:
        spec = world.spec()
        await asyncio.gather(*(world.cluster.ensure_server(spec) for _ in range(5)))
        await world.ready(spec)
        assert list((await world.cluster.observe()).servers) == [spec.reservation_id]

    async def test_two_dev_servers_have_two_ways_in(self, world: ClusterWorld) -> None:
        first, second = [await world.ready(world.spec()) for _ in range(2)]
        assert first.connection is not None
        assert second.connection is not None
        assert (first.connection.host, first.connection.port) != (second.connection.host, second.connection.port)

    async def test_a_gang_is_one_dev_server_with_one_way_in(self, world: ClusterWorld) -> None:
        spec = world.spec(nodes=2)
        seen = await world.ready(spec)
        assert seen.connection is not None
        assert list((await world.cluster.observe()).servers) == [spec.reservation_id]

    async def test_one_that_is_gone_is_not_seen_any_more(self, world: ClusterWorld) -> None:
        spec, other = world.spec(), world.spec()
        await world.ready(spec)
        await world.ready(other)
        await world.gone(spec.reservation_id)
        assert list((await world.cluster.observe()).servers) == [other.reservation_id]

    async def test_one_that_never_was_is_gone(self, world: ClusterWorld) -> None:
        assert await world.cluster.ensure_gone(new_reservation_id())

    async def test_gone_may_be_asked_for_twice(self, world: ClusterWorld) -> None:
        spec = world.spec()
        await world.ready(spec)
        await world.gone(spec.reservation_id)
        await world.gone(spec.reservation_id)

    async def test_one_that_is_still_starting_can_be_taken_down(self, world: ClusterWorld) -> None:
        spec = world.spec()
        await world.cluster.ensure_server(spec)
        await world.gone(spec.reservation_id)
        assert await world.seen(spec.reservation_id) is None

    async def test_start_and_end_at_the_same_moment_leave_a_clear_state(self, world: ClusterWorld) -> None:
        spec = world.spec()
        await asyncio.gather(
            world.cluster.ensure_server(spec), world.cluster.ensure_gone(spec.reservation_id), return_exceptions=True
        )
        await world.gone(spec.reservation_id)
        assert await world.seen(spec.reservation_id) is None

    async def test_a_change_wakes_whoever_listens(self, world: ClusterWorld) -> None:
        spec = world.spec()
        await _wakes(world, lambda: world.cluster.ensure_server(spec))
        await world.until(spec.reservation_id, ServerPhase.READY)
        await _wakes(world, lambda: world.kill(spec.reservation_id))
        await world.until(spec.reservation_id, ServerPhase.DEAD)
        await _wakes(world, lambda: world.gone(spec.reservation_id))

    async def test_death_is_seen_and_says_why(self, world: ClusterWorld) -> None:
        spec = world.spec()
        await world.ready(spec)
        await world.kill(spec.reservation_id)
        seen = await world.until(spec.reservation_id, ServerPhase.DEAD)
        assert seen.reason
        assert seen.connection is None
        assert not seen.is_restartable

    async def test_a_dead_one_starts_anew_when_asked_for_again_with_the_same_host_key(
        self, world: ClusterWorld
    ) -> None:
        spec = world.spec()
        before = await world.ready(spec)
        await world.kill(spec.reservation_id)
        await world.until(spec.reservation_id, ServerPhase.DEAD)
        after = await world.ready(spec)
        assert before.connection is not None
        assert after.connection is not None
        assert after.connection.host_key == before.connection.host_key

    async def test_telling_something_never_fails(self, world: ClusterWorld) -> None:
        spec = world.spec()
        await world.ready(spec)
        await world.cluster.send_message(spec.reservation_id, "ends in 5 minutes")
        await world.cluster.send_message(new_reservation_id(), "nobody is there")

    async def test_what_is_in_a_home_is_told_within_seconds_or_not_at_all(self, world: ClusterWorld) -> None:
        spec = world.spec()
        async with asyncio.timeout(PATIENCE_S):
            assert await world.cluster.home_contents(spec.reservation_id) is None, "there is none"
        await world.ready(spec)
        async with asyncio.timeout(PATIENCE_S):
            contents = await world.cluster.home_contents(spec.reservation_id)
        assert contents is None or contents.files >= 0
        await world.gone(spec.reservation_id)
        assert await world.cluster.home_contents(spec.reservation_id) is None

    async def test_another_control_plane_finds_them_again(self, world: ClusterWorld) -> None:
        spec = world.spec()
        before = await world.ready(spec)
        async with world.nobody_watching():
            pass
        assert await world.seen(spec.reservation_id) == before
        await world.cluster.ensure_server(spec)
        assert await world.seen(spec.reservation_id) == before
        await world.gone(spec.reservation_id)
        assert await world.seen(spec.reservation_id) is None

    async def test_one_that_died_while_nobody_watched_says_so_and_can_be_started_again(
        self, world: ClusterWorld
    ) -> None:
        spec = world.spec()
        before = await world.ready(spec)
        async with world.nobody_watching():
            await world.kill(spec.reservation_id)
        seen = await world.until(spec.reservation_id, ServerPhase.DEAD)
        assert seen.is_restartable
        after = await world.ready(spec)
        assert before.connection is not None
        assert after.connection is not None
        assert after.connection.host_key == before.connection.host_key
        assert not after.is_restartable


async def _wakes(world: ClusterWorld, act: Callable[[], Awaitable[object]]) -> None:
    changes = world.cluster.changes()
    waiting = asyncio.ensure_future(anext(changes))
    await asyncio.sleep(0)
    assert not waiting.done(), "something changed by itself"
    await act()
    await asyncio.wait_for(waiting, PATIENCE_S)
