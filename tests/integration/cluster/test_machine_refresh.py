"""Emptying nodes and replacing machines, over a real database and a paper cluster: who is told, moved, left alone."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpudev.adapters.postgres.database.cleanup import delete_old_rows
from gpudev.adapters.postgres.reservations.personalization import insert_personalization
from gpudev.adapters.postgres.reservations.reservation_store import PostgresMoves, PostgresReservations
from gpudev.domain.cluster import Node
from gpudev.domain.errors import Conflict
from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations.changes import Change, NewEvent
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.personalization import NO_PERSONALIZATION, Personalization
from gpudev.domain.reservations.reservation import Reservation
from gpudev.domain.sessions.addons import Collaborator
from gpudev.ports.cloud import MachineRefresh, NodeGroup, RefreshState
from gpudev.ports.cluster import NodeMachine, NodePod
from gpudev.ports.sessions import JupyterSecrets
from gpudev.workflows.cluster.drain import Eviction, NodeDrain
from gpudev.workflows.cluster.machine_refresh import NodeGroupRefresh
from support.processor_world import World

PREFIX = "pytorch-gpu-dev"
H100 = f"{PREFIX}-gpu-nodes-h100"
SETUP = Personalization({"TOKEN": "secret"}, "https://example.com/ada/dotfiles", None)
NODES = (Node("node-1", "h100", 8), Node("node-2", "h100", 8))


def stays(_: Reservation) -> None:
    """Nothing happens to whoever stays."""


@dataclass
class PaperGroups:
    by_name: dict[str, list[str]]
    refreshed: list[tuple[str, int]] = field(default_factory=list)
    last: MachineRefresh | None = None

    async def node_groups(self, prefix: str) -> list[NodeGroup]:
        return []

    async def machines(self, group: str) -> Sequence[str]:
        return self.by_name[group]

    async def last_refresh(self, group: str) -> MachineRefresh | None:
        return self.last

    async def ensure_refresh(self, group: str, *, keep_percent: int, warmup_seconds: int) -> MachineRefresh:
        self.refreshed.append((group, keep_percent))
        self.last = MachineRefresh("r-1", RefreshState.RUNNING, 0, "Pending")
        return self.last


class PaperMachines:
    async def nodes(self) -> Sequence[NodeMachine]:
        machines = {"node-1": "i-1", "node-2": "i-2", "cpu-1": "i-3", "bare": ""}
        return [NodeMachine(node, machine) for node, machine in machines.items()]

    async def pods_on(self, node: str) -> Sequence[NodePod]:
        return []

    async def remove_pod(self, pod: NodePod) -> None:
        raise AssertionError("nobody asked for that")


@pytest.fixture
def groups() -> PaperGroups:
    return PaperGroups({H100: ["i-1"], f"{H100}-spot": ["i-2"], f"{PREFIX}-cpu-nodes": ["i-3"], f"{H100}-new": [""]})


@pytest.fixture
def replacing(processor_world: World, groups: PaperGroups) -> NodeGroupRefresh:
    processor_world.cluster.nodes = NODES
    stores = processor_world.stores
    draining = NodeDrain(stores.cordons, stores.reservations, stores.unreleased, processor_world.clock)
    return NodeGroupRefresh(PREFIX, groups, PaperMachines(), stores.cordons, draining)


@pytest.fixture
def evicting(processor_world: World) -> Eviction:
    return Eviction(
        processor_world.stores.reservations,
        processor_world.stores.personalizations,
        processor_world.stores.moves,
        processor_world.clock,
    )


async def test_nothing_is_replaced_while_anybody_is_there(
    processor_world: World, replacing: NodeGroupRefresh, groups: PaperGroups
) -> None:
    first, second = await processor_world.submit(8), await processor_world.submit(8)
    await processor_world.turn()
    closed, there = await replacing.close_group(H100, "olga", "new driver", stays)
    [mine] = [
        one
        for one in (await processor_world.get(first), await processor_world.get(second))
        if one.shares[0].node == "node-1"
    ]
    assert (closed, [one.reservation_id for one in there]) == (["node-1"], [mine.reservation_id])
    assert "node_draining" in await processor_world.kinds(mine.reservation_id)
    with pytest.raises(Conflict, match="1 reservations are still on machines"):
        await replacing.begin_refresh(H100, closed)
    assert not groups.refreshed
    await processor_world.cancel(mine.reservation_id)
    await processor_world.turn()
    await replacing.begin_refresh(H100, closed)
    assert groups.refreshed == [(H100, 0)]


async def test_a_node_is_not_called_empty_before_the_processor_has_heard_that_it_is_closed(
    processor_world: World, replacing: NodeGroupRefresh
) -> None:
    await processor_world.turn()
    closed, _ = await replacing.close_group(H100, "olga", "", stays)
    assert not await replacing.are_cordons_in_effect(closed)
    await processor_world.turn()
    assert await replacing.are_cordons_in_effect(closed)


async def test_only_what_this_replacement_closed_is_opened_again(
    processor_world: World, replacing: NodeGroupRefresh
) -> None:
    await processor_world.turn()
    await replacing.close_group(H100, "olga", "new driver", stays)
    await replacing.close_group(f"{H100}-spot", "olga", "", stays)
    assert await replacing.finish_refresh(H100) == ["node-1"]
    assert set(await processor_world.stores.cordons.cordons()) == {"node-2"}, "the name of one group begins another's"
    assert await replacing.finish_refresh(f"{H100}-spot") == ["node-2"]


async def test_the_control_planes_machines_go_one_after_the_other_and_are_not_closed(
    processor_world: World, replacing: NodeGroupRefresh, groups: PaperGroups
) -> None:
    await processor_world.turn()
    name = replacing.full_group_name("cpu")
    assert await replacing.nodes_of(name) == ["cpu-1"]
    closed, there = await replacing.close_group(name, "olga", "", stays)
    assert (closed, there) == ([], [])
    await replacing.begin_refresh(name, closed)
    assert groups.refreshed == [(f"{PREFIX}-cpu-nodes", 50)]


def test_groups_have_short_names(replacing: NodeGroupRefresh) -> None:
    assert replacing.full_group_name("h100") == replacing.full_group_name(H100) == H100


async def test_who_is_moved_comes_back_before_others_with_the_time_that_was_left(
    processor_world: World, evicting: Eviction
) -> None:
    processor_world.cluster.nodes = NODES[:1]
    rid = await processor_world.submit(8, hours=4, user="ada")
    async with processor_world.stores.pool.transaction() as connection:
        await insert_personalization(connection, rid, SETUP)
    await processor_world.turn()
    waiting = await processor_world.submit(8, hours=1, user="bob")
    processor_world.clock.move(minutes=60)
    await processor_world.turn()
    with pytest.raises(Conflict, match="no placement"):
        await evicting.begin_move(waiting, "node-1 is needed")

    for _ in range(2):
        assert (await evicting.begin_move(rid, "node-1 is needed")).status is Status.CANCELLED
    with pytest.raises(Conflict, match="torn down"):
        await evicting.finish_move(rid)
    processor_world.cluster.nodes = ()
    await processor_world.turn()
    again = await evicting.finish_move(rid)
    repeated = await evicting.finish_move(rid)
    assert again is not None and repeated is not None
    assert again.reservation_id == repeated.reservation_id != rid
    left = await processor_world.get(rid)
    assert left.expires_at is not None
    assert again.duration == left.expires_at - processor_world.clock.now()
    assert timedelta(hours=2.9) < again.duration <= timedelta(hours=3)
    assert (again.username, again.gpu_count, again.ssh_public_keys) == ("ada", 8, left.ssh_public_keys)

    processor_world.cluster.nodes = NODES[1:]
    await processor_world.turn()
    assert await processor_world.status(again.reservation_id) is Status.ACTIVE
    assert (await processor_world.status(waiting)).is_waiting
    assert (await processor_world.kinds(rid))[-4:] == ["moved", "cancelled", "released", "moved"]
    assert await processor_world.stores.personalizations.load_personalization(again.reservation_id) == SETUP


async def test_who_has_hardly_any_time_left_is_not_started_again(processor_world: World, evicting: Eviction) -> None:
    rid = await processor_world.submit(8, hours=1)
    await processor_world.turn()
    processor_world.clock.move(minutes=56)
    async with processor_world.stores.pool.transaction() as connection:
        await insert_personalization(connection, rid, SETUP)
    await evicting.begin_move(rid, "node-1 is needed")
    await processor_world.turn()
    assert await evicting.finish_move(rid) is None
    assert await processor_world.stores.personalizations.load_personalization(rid) == NO_PERSONALIZATION
    assert await processor_world.stores.moves.list_unfinished_moves() == []


async def test_what_was_ended_for_good_does_not_come_back(processor_world: World, evicting: Eviction) -> None:
    rid = await processor_world.submit(8)
    await processor_world.turn()
    ended = await evicting.end(rid, "node-1 is broken")
    assert ended.status is (await evicting.end(rid, "node-1 is broken")).status is Status.CANCELLED
    await processor_world.turn()
    assert (await processor_world.kinds(rid)).count("cancelled") == 1
    with pytest.raises(Conflict, match="was not moved"):
        await evicting.finish_move(ended.reservation_id)
    assert await processor_world.stores.moves.list_unfinished_moves() == []


BOB = Collaborator("bob", ("ssh-ed25519 AAAA bob",), "ada", datetime(2026, 1, 1, tzinfo=UTC))
SECRETS = JupyterSecrets("token", "ssh-ed25519 AAAA jupyter", "private")


class Interrupted(Exception):
    """Whoever moved it is no more."""


@pytest.mark.parametrize("interrupted", [None, "submit", "finish_move", "apply_change"])
async def test_what_was_wanted_inside_goes_along_wherever_it_was_interrupted(
    processor_world: World, evicting: Eviction, monkeypatch: pytest.MonkeyPatch, interrupted: str | None
) -> None:
    rid = await furnished(processor_world)
    await evicting.begin_move(rid, "node-1 is needed")
    await processor_world.turn()
    assert (await processor_world.get(rid)).is_released
    await begun_ago(processor_world, "1 hour")
    await delete_old_rows(processor_world.stores.pool)  # as it happens now and then
    assert await processor_world.stores.moves.list_unfinished_moves() == [rid]
    if interrupted is not None:
        with monkeypatch.context() as patch:
            home = PostgresMoves if interrupted == "finish_move" else PostgresReservations
            patch.setattr(home, interrupted, and_then_dies(getattr(home, interrupted)))
            with pytest.raises(Interrupted):
                await evicting.finish_move(rid)
    again = await evicting.finish_move(rid)
    repeated = await evicting.finish_move(rid)
    assert again is not None and repeated is not None
    assert again.reservation_id == repeated.reservation_id
    await processor_world.turn()
    spec = processor_world.cluster.specs[again.reservation_id]
    assert (dict(spec.environment), spec.dotfiles) == (SETUP.environment, SETUP.dotfiles)
    assert set(spec.ssh_public_keys) == {*again.ssh_public_keys, *BOB.ssh_public_keys}
    assert spec.jupyter is not None and str(again.reservation_id) in spec.jupyter.base_url
    interior = await processor_world.stores.addons.find_addons(again.reservation_id)
    assert interior is not None and interior.collaborators == (BOB,)
    assert (await processor_world.kinds(again.reservation_id)).count("continues") == 1
    assert (await processor_world.kinds(rid))[-1] == "moved"
    assert await processor_world.stores.moves.list_unfinished_moves() == []
    assert await processor_world.stores.personalizations.load_personalization(rid) == NO_PERSONALIZATION
    assert await processor_world.stores.addons.find_secrets(rid) is None


async def test_whoever_was_sent_away_since_is_not_let_in_by_moving_it_once_more(
    processor_world: World, evicting: Eviction
) -> None:
    rid = await furnished(processor_world)
    await evicting.begin_move(rid, "node-1 is needed")
    await processor_world.turn()
    again = await evicting.finish_move(rid)
    assert again is not None
    again = await processor_world.get(again.reservation_id)
    change = Change(again.reservation_id, again.status, again.version, NewEvent("users", "bob may not log in any more"))
    await processor_world.stores.addons.remove_user(change, "bob", now=processor_world.clock.now())
    await evicting.finish_move(rid)
    interior = await processor_world.stores.addons.find_addons(again.reservation_id)
    assert interior is not None and interior.collaborators == ()


async def test_what_nobody_comes_back_for_is_forgotten_after_a_week(processor_world: World, evicting: Eviction) -> None:
    rid = await furnished(processor_world)
    await evicting.begin_move(rid, "node-1 is needed")
    await processor_world.turn()
    await begun_ago(processor_world, "8 days")
    await delete_old_rows(processor_world.stores.pool)
    assert await processor_world.stores.personalizations.load_personalization(rid) == NO_PERSONALIZATION
    assert await processor_world.stores.addons.find_secrets(rid) is None


async def begun_ago(processor_world: World, how_long: str) -> None:
    """By the database's clock, which is the one that counts for what is forgotten."""
    async with processor_world.stores.pool.acquire() as connection:
        await connection.execute("UPDATE reservation_moves SET begun_at = now() - $1::text::interval", how_long)


async def furnished(processor_world: World) -> ReservationId:
    """One that runs, with somebody else let in, Jupyter, and its owner's own set-up."""
    rid = await processor_world.submit(8, hours=4)
    async with processor_world.stores.pool.transaction() as connection:
        await insert_personalization(connection, rid, SETUP)
    await processor_world.turn()
    for write in (
        lambda change: processor_world.stores.addons.add_users(change, [BOB], now=processor_world.clock.now()),
        lambda change: processor_world.stores.addons.enable_jupyter(change, SECRETS, now=processor_world.clock.now()),
    ):
        row = await processor_world.get(rid)
        await write(Change(rid, row.status, row.version, NewEvent("interior", "changed")))
    return rid


def and_then_dies(done: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
    async def die(*arguments: Any, **more: Any) -> object:
        await done(*arguments, **more)
        raise Interrupted

    return die
