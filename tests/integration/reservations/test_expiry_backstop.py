"""`expire`, for a system whose processor is away: what it does, and that it does nothing twice."""

from datetime import timedelta

import pytest

from gpudev.adapters.postgres.stores import open_stores
from gpudev.bootstrap.processor import make_processor
from gpudev.domain.errors import Unavailable
from gpudev.domain.ids import new_reservation_id
from gpudev.domain.reservations.lifecycle import Status
from gpudev.ports.cluster import ServerPhase, ServerState
from gpudev.processor.expiry_report import ExpiryReport
from gpudev.processor.planning_loop import Processor
from support.processor_world import World


@pytest.fixture
async def away(reconciler_world: World) -> World:
    """Nobody plans; what ran runs on."""
    await reconciler_world.submit(2, hours=4)
    await reconciler_world.turn()
    await _go_away(reconciler_world.processor)
    return reconciler_world


async def _go_away(processor: Processor) -> None:
    assert processor._lease is not None
    await processor._leases.release(processor._lease)
    processor._lease = None


async def expire(reconciler_world: World, *, dry_run: bool = False) -> ExpiryReport:
    """By somebody new each time, as a CronJob is."""
    stores = open_stores(reconciler_world.settings)
    try:
        backstop = make_processor(
            stores, reconciler_world.cluster, reconciler_world.clock, reconciler_world.settings.timing
        )
        report = await backstop.expire(dry_run=dry_run)
    finally:
        await stores.close()
    assert report is not None
    return report


async def test_it_warns_once_for_each_threshold_however_often_it_runs(away: World) -> None:
    (row,) = await away.stores.reservations.unreleased()
    for minutes, count in ((31, 0), (30, 1), (29, 1), (15, 2), (14, 2), (5, 3), (1, 3)):
        away.clock.move(to=row.expires_at - timedelta(minutes=minutes) if row.expires_at else None)
        await expire(away)
        await expire(away)
        assert len(away.cluster.told) == count, minutes
    assert (await away.kinds(row.reservation_id)).count("warning") == 3


async def test_what_is_over_is_ended_recorded_and_cleared_away_in_one_run(away: World) -> None:
    (row,) = await away.stores.reservations.unreleased()
    away.clock.move(hours=5)
    report = await expire(away)
    assert report.succeeded
    after = await away.get(row.reservation_id)
    assert (after.status, after.released_at, away.cluster.servers) == (Status.EXPIRED, away.clock.now(), {})
    again = await expire(away)
    assert (again.changes, again.torn_down) == ([], [])


async def test_a_dry_run_says_what_would_be_done_and_does_nothing(away: World) -> None:
    (row,) = await away.stores.reservations.unreleased()
    away.clock.move(hours=5)
    report = await expire(away, dry_run=True)
    assert len(report.changes) == 1
    assert await away.get(row.reservation_id) == row
    assert row.reservation_id in away.cluster.servers


async def test_nobody_is_started(away: World) -> None:
    waiting = await away.submit(2, user="bob")
    await expire(away)
    assert (await away.status(waiting), away.cluster.launches) == (Status.PENDING, 1)


async def test_whoever_would_not_wait_longer_is_cancelled_also_without_a_processor(away: World) -> None:
    waiting = await away.submit(8, user="bob")
    async with away.stores.pool.acquire() as connection:
        await connection.execute("UPDATE reservations SET wait_until = $1", away.clock.now())
    await expire(away)
    assert await away.status(waiting) is Status.CANCELLED


async def test_a_dev_server_without_a_reservation_is_reported_and_removed_by_a_later_run(away: World) -> None:
    stranger = new_reservation_id()
    away.cluster.servers[stranger] = ServerState(stranger, ServerPhase.READY)
    first = await expire(away)
    assert (first.orphans, first.removed) == ([str(stranger)], [])
    assert stranger in away.cluster.servers
    away.clock.move(seconds=31)
    second = await expire(away)
    assert second.removed == [str(stranger)]
    assert stranger not in away.cluster.servers


async def test_what_does_not_go_away_is_told_as_a_failure(away: World) -> None:
    away.clock.move(hours=5)
    away.cluster.slow_to_go = True
    report = await expire(away)
    assert len(report.unfinished) == 1
    assert not report.succeeded


async def test_a_cluster_that_cannot_be_seen_is_a_failure_and_time_decides_all_the_same(away: World) -> None:
    (row,) = await away.stores.reservations.unreleased()
    away.clock.move(hours=5)
    away.cluster.refuse_look = Unavailable("the API server is away")
    report = await expire(away)
    assert not report.succeeded
    assert await away.status(row.reservation_id) is Status.EXPIRED
