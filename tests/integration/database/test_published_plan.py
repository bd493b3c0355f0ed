"""The published plan: what was written is what is read, in one small row."""

from datetime import UTC, datetime, timedelta

import pytest

from gpudev.adapters.postgres.queue.estimates import PostgresQueuePlans, pack_plan, unpack_plan
from gpudev.adapters.postgres.stores import Stores
from gpudev.domain.cluster import ZoneConstraint
from gpudev.domain.errors import LeaseLost
from gpudev.domain.ids import new_reservation_id
from gpudev.domain.queue import PLANNING_LEASE, Estimate, QueuePlan, StartQuote, TimeInterval
from gpudev.ports.leases import Lease

NOW = datetime(2026, 3, 2, 9, 0, 0, 123456, tzinfo=UTC)
EXACT = datetime(2026, 3, 2, 9, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def plan(waiting: int = 3, made_at: datetime = EXACT, gpu_type: str = "h100") -> QueuePlan:
    waits = {
        new_reservation_id(): Estimate(
            at + 1,
            made_at + at * MINUTE,
            TimeInterval(made_at + at * MINUTE / 2, made_at, made_at + at * MINUTE),
            f"{at} requests ahead; first fit when reservation 3f2a1b7c ends",
            ("node-1", f"node-{at % 50}") if at % 7 == 0 else (f"node-{at % 50}",),
        )
        for at in range(waiting)
    }
    waits[new_reservation_id()] = Estimate(waiting + 1, None, None, "there is no h100 node")
    offers = (
        StartQuote(8, 2, timedelta(hours=8), made_at + MINUTE, TimeInterval(made_at, made_at, made_at + MINUTE)),
        StartQuote(8, 2, None, made_at + 2 * MINUTE, None),
    )
    zones = {"node-1": "zone-a", "node-2": "zone-b", "node-3": "zone-a"}
    moves = (None, timedelta(seconds=30, microseconds=1))
    anchors = {
        who: ZoneConstraint("data", frozenset({"zone-a"}), moves[at % 2]) for at, who in enumerate(list(waits)[:2])
    }
    return QueuePlan(gpu_type, made_at, 77, waits, offers, (1.0, 2.5), ((0.5, 1.0, 2.0),), zones, anchors)


def test_what_is_packed_is_unpacked_again() -> None:
    told = plan()
    read = unpack_plan("h100", told.made_at, pack_plan(told))
    assert dict(read.estimates) == dict(told.estimates)
    assert (read.quotes, read.planned_seq, read.usage_ratios, read.correction_factors) == (
        told.quotes,
        told.planned_seq,
        told.usage_ratios,
        told.correction_factors,
    )
    assert (read.zones, read.zone_constraints) == (told.zones, told.zone_constraints)


def test_a_promise_stays_what_it_is_by_being_written_down() -> None:
    odd = {new_reservation_id(): Estimate(1, NOW + timedelta(microseconds=odd), None, "") for odd in (-1, 1, 999_999)}
    assert dict(unpack_plan("h100", NOW, pack_plan(QueuePlan("h100", NOW, 1, odd))).estimates) == odd


def test_ten_thousand_are_a_few_hundred_kilobytes() -> None:
    assert len(pack_plan(plan(10_000))) < 500_000


async def test_a_plan_is_read_by_whoever_asks_and_only_the_newest_counts(stores: Stores) -> None:
    lease = await stores.leases.acquire(PLANNING_LEASE, "me", timedelta(seconds=5))
    assert lease is not None
    reader = PostgresQueuePlans(stores.pool)
    assert await reader.refresh() == {}
    first, second, other = plan(1), plan(2), plan(1, gpu_type="t4")
    await stores.plans.publish_plans(lease, [first, other])
    assert (await reader.refresh()).keys() == {"h100", "t4"}
    await stores.plans.publish_plans(lease, [second])
    plans = await reader.refresh()
    assert plans["h100"].estimates.keys() == second.estimates.keys()
    assert plans["t4"].estimates.keys() == other.estimates.keys()


async def test_who_has_lost_the_lease_publishes_nothing(stores: Stores) -> None:
    lease = await stores.leases.acquire(PLANNING_LEASE, "me", timedelta(seconds=5))
    assert lease is not None
    with pytest.raises(LeaseLost):
        await stores.plans.publish_plans(Lease(lease.name, lease.holder, lease.epoch - 1), [plan()])
    assert await PostgresQueuePlans(stores.pool).refresh() == {}
