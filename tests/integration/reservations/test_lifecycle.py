"""What the processor does with reservations, turn by turn, on a real database."""

from datetime import timedelta

import pytest

from gpudev.adapters.postgres.stores import Stores, open_stores
from gpudev.bootstrap.processor import make_processor
from gpudev.domain.cluster import Node, NodeShare
from gpudev.domain.errors import ClusterError, LeaseLost, Unavailable
from gpudev.domain.ids import new_reservation_id
from gpudev.domain.queue import RESERVATION_QUEUE
from gpudev.domain.reservations.changes import Change, NewEvent
from gpudev.domain.reservations.lifecycle import Status
from gpudev.ports.cluster import ServerPhase, ServerState
from support.clock import ManualClock
from support.processor_world import World


async def queue_length(stores: Stores, queue: str) -> int:
    return next(state.length for state in await stores.message_queue.list_queue_metrics() if state.queue == queue)


async def test_a_reservation_that_fits_becomes_active_and_its_time_begins_when_it_is_ready(world: World) -> None:
    rid = await world.submit(2, hours=4)
    await world.turn()
    row = await world.get(rid)
    assert row.status is Status.ACTIVE
    assert row.expires_at == world.clock.now() + timedelta(hours=4)
    assert row.launched_at == world.clock.now()
    assert row.connection is not None
    assert await world.kinds(rid) == ["submitted", "preparing", "active"]
    assert await queue_length(world.stores, RESERVATION_QUEUE) == 0


async def test_a_waiting_one_is_told_the_end_of_the_first_and_starts_when_that_is_cancelled(
    world: World,
) -> None:
    first, second = await world.submit(8, user="ada"), await world.submit(8, user="bob")
    await world.turn()
    waiting = await world.get(second)
    assert waiting.status is Status.QUEUED
    assert await world.position(waiting.reservation_id) == 1
    assert await world.start_by_planned_ends(waiting.reservation_id) == (await world.get(first)).expires_at
    await world.cancel(first)
    await world.turn()
    assert await world.status(second) is Status.ACTIVE
    assert (await world.get(first)).released_at is not None


async def test_gpus_stay_owned_until_the_dev_server_is_confirmed_gone(world: World) -> None:
    first, second = await world.submit(8), await world.submit(8, user="bob")
    await world.turn()
    world.cluster.slow_to_go = True
    await world.cancel(first)
    await world.turn()
    assert await world.status(first) is Status.CANCELLED
    assert (await world.get(first)).released_at is None
    assert await world.status(second) is Status.QUEUED
    world.cluster.slow_to_go = False
    await world.turn()
    assert await world.status(second) is Status.ACTIVE


async def test_a_cancelled_reservation_is_never_resurrected_by_a_late_launch(world: World) -> None:
    rid = await world.submit(1)
    world.cluster.ready_at_once = False
    await world.turn()
    assert await world.status(rid) is Status.PREPARING
    await world.cancel(rid)
    world.cluster.make_ready(rid)
    await world.turn()
    assert await world.status(rid) is Status.CANCELLED
    assert world.cluster.servers == {}


async def test_preparing_has_a_deadline_that_removes_what_was_made(world: World) -> None:
    world.cluster.ready_at_once = False
    rid = await world.submit(1)
    await world.turn()
    world.clock.move(minutes=16)
    await world.turn()
    row = await world.get(rid)
    assert row.status is Status.FAILED
    assert row.failure_reason is not None
    assert "15 minutes" in row.failure_reason
    assert world.cluster.servers == {}
    assert row.released_at is not None


async def test_warnings_come_once_each_and_extending_rearms_them(world: World) -> None:
    rid = await world.submit(1, hours=1)
    await world.turn()
    for minutes in (31, 0, 15, 0, 10, 0):
        world.clock.move(minutes=minutes)
        await world.turn()
    assert (await world.kinds(rid)).count("warning") == 3
    assert len(world.cluster.told) == 3
    row = await world.get(rid)
    later = row.expires_at + timedelta(hours=1)
    fields = {"expires_at": later, "warned_minutes": None}
    await world.stores.reservations.apply_change(
        Change(rid, row.status, row.version, NewEvent("extended", "by 1 h"), fields=fields), now=world.clock.now()
    )
    world.clock.move(minutes=35)
    await world.turn()
    assert (await world.kinds(rid)).count("warning") == 4


async def test_an_expired_one_is_torn_down_and_recorded(world: World) -> None:
    rid = await world.submit(1, hours=1)
    await world.turn()
    world.clock.move(minutes=60)
    await world.turn()
    row = await world.get(rid)
    assert row.status is Status.EXPIRED
    assert row.reservation_ended == world.clock.now()
    assert row.released_at is not None
    assert world.cluster.servers == {}


async def test_a_dev_server_that_dies_is_told_with_the_reason(world: World) -> None:
    rid = await world.submit(1)
    await world.turn()
    world.cluster.kill(rid)
    await world.turn()
    row = await world.get(rid)
    assert row.status is Status.FAILED
    assert "signal 9" in (row.failure_reason or "")


async def test_a_dev_server_lost_with_the_machine_is_started_again_and_the_history_says_so(world: World) -> None:
    rid = await world.submit(1, hours=4)
    await world.turn()
    end = (await world.get(rid)).expires_at
    world.cluster.kill(rid, unwatched=True)
    await world.turn()
    row = await world.get(rid)
    assert row.status is Status.ACTIVE
    assert row.expires_at == end
    assert row.step is None
    kinds = await world.kinds(rid)
    assert kinds.count("restarted") == 1
    assert kinds.count("reconnected") == 1
    assert world.cluster.launches == 2


async def test_a_refused_start_is_tried_three_times_then_dead_lettered_with_the_reason(world: World) -> None:
    world.cluster.refuse_launch = ClusterError("no such image")
    rid = await world.submit(1)
    for _ in range(4):
        await world.turn()
        world.clock.move(seconds=30)
    row = await world.get(rid)
    assert row.status is Status.FAILED
    assert "3 attempts" in (row.failure_reason or "")
    assert "no such image" in (row.failure_reason or "")
    assert row.released_at is not None
    assert await queue_length(world.stores, "gpu_reservations_dlq") == 1


async def test_a_cluster_that_cannot_be_seen_changes_nothing(world: World) -> None:
    rid = await world.submit(1)
    await world.turn()
    world.cluster.refuse_look = Unavailable("the cluster does not answer")
    late = await world.submit(1, user="bob")
    await world.turn()
    assert await world.status(rid) is Status.ACTIVE
    assert await world.status(late) is Status.PENDING
    assert await queue_length(world.stores, RESERVATION_QUEUE) == 1
    world.cluster.refuse_look = None
    await world.turn()
    assert await world.status(late) is Status.ACTIVE


async def test_a_message_that_names_nothing_ends_in_the_dead_letter_queue(world: World) -> None:
    async with world.stores.pool.acquire() as connection:
        await connection.execute("SELECT pgmq.send('gpu_reservations', $1::jsonb)", {"reservation_id": "nonsense"})
    for _ in range(3):
        await world.turn(1)
        async with world.stores.pool.acquire() as connection:
            await connection.execute("UPDATE pgmq.q_gpu_reservations SET vt = clock_timestamp() - interval '1 s'")
    assert await queue_length(world.stores, RESERVATION_QUEUE) == 0
    letters = await world.stores.message_queue.peek_messages("gpu_reservations_dlq")
    assert letters[0].body["failures"] == 3
    assert "has no reservation id" in letters[0].body["error"]


async def test_a_lost_message_is_caught_by_the_sweep(world: World) -> None:
    rid = await world.submit(1)
    async with world.stores.pool.acquire() as connection:
        await connection.execute("SELECT pgmq.purge_queue('gpu_reservations')")
    await world.turn()
    assert await world.status(rid) is Status.ACTIVE


async def test_an_orphan_is_reported_first_and_removed_after_the_grace_period(world: World) -> None:
    stray = new_reservation_id()
    world.cluster.servers[stray] = ServerState(stray, ServerPhase.READY)
    await world.turn()
    assert stray in world.cluster.servers
    world.clock.move(seconds=31)
    await world.turn()
    assert stray not in world.cluster.servers
    assert world.cluster.put_aside == [stray], "no record knows it, so its files must stay"


async def test_what_an_orphan_holds_is_promised_to_nobody_until_it_is_gone(world: World) -> None:
    stray = new_reservation_id()
    world.cluster.servers[stray] = ServerState(stray, ServerPhase.READY, node_shares=(NodeShare(0, "node-1", 4),))
    rid = await world.submit(8)
    await world.turn()
    assert await world.status(rid) is Status.QUEUED
    world.clock.move(seconds=31)
    await world.turn()
    await world.turn()
    assert stray not in world.cluster.servers
    assert await world.status(rid) is Status.ACTIVE


async def test_one_change_that_the_database_refuses_stops_no_other(world: World) -> None:
    running = await world.submit(1)
    await world.turn()
    # A GPU that no placement knows is held all the same, as if somebody had written it there by hand.
    async with world.stores.pool.acquire() as connection:
        await connection.execute("INSERT INTO held_gpus VALUES ('node-1', 1, $1)", running)
    poisoned = await world.submit(1, user="bob")
    world.clock.move(hours=5)
    await world.turn(1)
    assert await world.status(poisoned) is Status.PENDING
    assert await world.status(running) is Status.EXPIRED


async def test_a_gang_takes_whole_nodes_and_gives_them_back_whole(world: World) -> None:
    world.cluster.nodes = (Node("node-1", "h100", 8), Node("node-2", "h100", 8))
    small = await world.submit(1)
    await world.turn()
    gang = await world.submit(16, nodes=2, user="bob")
    await world.turn()
    assert await world.status(gang) is Status.QUEUED
    await world.cancel(small)
    await world.turn()
    row = await world.get(gang)
    assert row.status is Status.ACTIVE
    assert [(share.rank, share.units) for share in row.shares] == [(0, 8), (1, 8)]
    assert len({share.node for share in row.shares}) == 2


async def test_only_one_processor_plans_and_a_late_writer_changes_nothing(world: World, clock: ManualClock) -> None:
    await world.turn()
    other_stores = open_stores(world.settings)
    other = make_processor(other_stores, world.cluster, clock, world.settings.timing)
    assert await other.acquire_lease() is False
    await world.stores.leases.close()  # the first one's session ends, as when it is killed
    assert await other.acquire_lease() is True
    rid = await world.submit(1)
    with pytest.raises(LeaseLost):
        await world.processor.run_cycle()
    assert await world.status(rid) is Status.PENDING
    await other.run_cycle()
    assert await world.status(rid) is not Status.PENDING
    await other.effects.wait_idle()
    await other_stores.close()


async def test_availability_is_published_for_those_without_a_cluster(world: World) -> None:
    await world.submit(2)
    await world.turn()
    rows = {row.gpu_type: row for row in await world.stores.catalogue.availability()}
    assert (rows["h100"].total_cluster_gpus, rows["h100"].available_gpus) == (8, 6)
    assert rows["h100"].updated_at == world.clock.now()
    nodes, _ = await world.stores.nodes.nodes("h100")
    assert [node.name for node in nodes] == ["node-1"]


async def test_the_backstop_ends_what_is_over_and_starts_nobody(world: World) -> None:
    over, running = await world.submit(4, hours=1), await world.submit(4, hours=4)
    await world.turn()
    waiting = await world.submit(8, user="bob")
    await world.turn()
    backstop = make_processor(world.stores, world.cluster, world.clock, world.settings.timing)
    other = open_stores(world.settings)
    try:
        backstop._leases = other.leases
        assert not await backstop.expire(), "the processor is at work"
        assert world.processor._lease is not None
        await world.stores.leases.release(world.processor._lease)
        world.clock.move(hours=2)
        assert await backstop.expire()
    finally:
        await other.close()
    row = await world.get(over)
    assert (row.status, row.reservation_ended, row.is_released) == (Status.EXPIRED, world.clock.now(), True)
    assert await world.status(running) is Status.ACTIVE
    assert await world.status(waiting) is Status.QUEUED
    await world.turn()
    assert len(world.cluster.servers) == 1, "the processor took over again, and the waiting one needs the whole node"
