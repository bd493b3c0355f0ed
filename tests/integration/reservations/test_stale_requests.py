"""Requests that nobody looks at, and those whose owner would wait only so long."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from gpudev.adapters.postgres.stores import Stores
from gpudev.domain.errors import Unavailable
from gpudev.domain.ids import ReservationId, new_reservation_id
from gpudev.domain.queue import RESERVATION_QUEUE
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation, ReservationDraft
from gpudev.planning.reservations.stale_requests import (
    CancelStaleRequest,
    ResendRequest,
    decide_max_wait,
    decide_stale_requests,
    without_given_up,
)
from gpudev.ports.queue import PlanningRecords
from gpudev.processor.queue_planner import QueuePlanner
from gpudev.workflows.reservations.stale_requests import StaleRequests
from support.planner.reservation_factory import preparing
from support.planner.situations import NOW
from support.processor_world import World

PATIENCE = timedelta(minutes=5)


def minutes(count: float) -> timedelta:
    return timedelta(minutes=count)


def waiting(since: float = 30, *, resent: float | None = None, **more: object) -> Reservation:
    """`since` and `resent`: minutes ago."""
    return replace(
        preparing(),
        status=Status.QUEUED,
        preparing_at=None,
        created_at=NOW - minutes(since),
        resent_at=None if resent is None else NOW - minutes(resent),
        **{"shares": (), **more},  # type: ignore[arg-type]
    )


def looks(
    last: float | None = 0.1, since: float | None = 60, looked: float | None = None, seqs: Iterable[int] = (1,)
) -> PlanningRecords:
    """In minutes ago. `looked`: when the type's queue was looked at."""
    by_type = {} if looked is None else {"h100": (NOW - minutes(looked), frozenset(seqs))}
    return PlanningRecords(_ago(last), _ago(since), by_type)


def _ago(count: float | None) -> datetime | None:
    return None if count is None else NOW - minutes(count)


@pytest.mark.parametrize(("row", "seen", "expected"), [
    (waiting(), looks(looked=0.2), None),
    (waiting(), looks(looked=4.9), None),
    (waiting(), looks(looked=5), ResendRequest),
    (waiting(), looks(), ResendRequest),
    (waiting(), looks(looked=0.2, seqs=[2, 3]), ResendRequest),
    (waiting(4.9), looks(), None),
    # While no processor is at work, nobody is neglected.
    (waiting(), looks(last=None), None),
    (waiting(), looks(last=1.1), None),
    # One that has just come back gets its time.
    (waiting(600), looks(since=4.9, looked=300), None),
    (waiting(600), looks(since=5, looked=300), ResendRequest),
    # Sent again: once, then it has as long again, and is given up if that did not help.
    (waiting(resent=4.9), looks(looked=20), None),
    (waiting(resent=5), looks(looked=20), CancelStaleRequest),
    (waiting(resent=20), looks(looked=0.2), None),
    (waiting(60, resent=40), looks(looked=20), ResendRequest),
    (waiting(60, resent=50), looks(since=6), ResendRequest),
    (preparing(created_at=NOW - minutes(60)), looks(), None),
])  # fmt: skip
def test_who_is_neglected(row: Reservation, seen: PlanningRecords, expected: type | None) -> None:
    decided = decide_stale_requests([row], seen, NOW, PATIENCE)
    assert [type(one) for one in decided] == ([] if expected is None else [expected])


def test_whoever_would_not_wait_longer_is_cancelled_and_the_next_is_awaited() -> None:
    over, later = waiting(wait_until=NOW), waiting(wait_until=NOW + minutes(3))
    decided = decide_max_wait([over, later, waiting(), preparing(wait_until=NOW)], NOW)
    (change,) = decided.changes
    assert (change.to, change.release) == (Status.CANCELLED, True)
    assert change.event is not None
    assert change.event.message == "maximum wait of 30 minutes reached"
    assert decided.next_at == NOW + minutes(3)


def test_one_that_still_holds_a_place_is_cancelled_without_letting_it_go() -> None:
    leaving = waiting(wait_until=NOW, shares=preparing().shares)
    decided = decide_max_wait([leaving], NOW)
    assert not decided.changes[0].release
    assert without_given_up([leaving], decided) == [leaving]


# --- On a real database ------------------------------------------------------------------------------------------


def neglected(reconciler_world: World) -> StaleRequests:
    return StaleRequests(
        reconciler_world.stores.reservations,
        reconciler_world.stores.planning_records,
        reconciler_world.clock,
    )


async def messages(stores: Stores) -> int:
    return next(
        state.length for state in await stores.message_queue.list_queue_metrics() if state.queue == RESERVATION_QUEUE
    )


async def test_a_request_that_waits_in_its_queue_for_hours_is_not_stale(reconciler_world: World) -> None:
    await reconciler_world.submit(8)
    second = await reconciler_world.submit(8, user="bob")
    await reconciler_world.turn()
    for _ in range(12):
        reconciler_world.clock.move(seconds=30)
        await reconciler_world.turn(1)
    assert (await neglected(reconciler_world).run()).sent_again == []
    assert await reconciler_world.status(second) is Status.QUEUED


async def test_a_request_whose_type_cannot_be_planned_is_sent_again_then_cancelled_with_the_reason(
    reconciler_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await reconciler_world.submit(8)
    second = await reconciler_world.submit(8, user="bob")
    await reconciler_world.turn()

    def broken(*_: object) -> None:
        raise ArithmeticError("a bug")

    monkeypatch.setattr(QueuePlanner, "_run_cycle", broken)
    await _minutes_pass(reconciler_world, 5.5)
    report = await neglected(reconciler_world).run(dry_run=True)
    assert (len(report.sent_again), await reconciler_world.kinds(second)) == (1, ["submitted", "queued"])
    assert len((await neglected(reconciler_world).run()).sent_again) == 1
    assert await messages(reconciler_world.stores) == 1
    assert (await neglected(reconciler_world).run()).sent_again == [], "once is enough"
    async with (
        reconciler_world.stores.pool.acquire() as connection
    ):  # a message that fails three times would end it otherwise
        await connection.execute("SELECT pgmq.purge_queue('gpu_reservations')")
    await _minutes_pass(reconciler_world, 5.5)
    assert len((await neglected(reconciler_world).run()).cancelled) == 1
    row = await reconciler_world.get(second)
    assert row.status is Status.CANCELLED
    assert "not even after it was sent again" in (row.failure_reason or "")
    assert row.released_at is not None
    assert await reconciler_world.kinds(second) == ["submitted", "queued", "sent_again", "cancelled"]


async def test_nothing_is_stale_while_no_processor_is_alive(reconciler_world: World) -> None:
    rid = await reconciler_world.submit(8)
    await reconciler_world.turn()
    waiting_one = await reconciler_world.submit(8, user="bob")
    await reconciler_world.processor._leases.release(reconciler_world.processor._lease)  # type: ignore[arg-type]
    reconciler_world.clock.move(hours=3)
    assert (await neglected(reconciler_world).run()).sent_again == []
    assert await reconciler_world.status(waiting_one) is Status.PENDING
    assert await reconciler_world.status(rid) is Status.ACTIVE


async def test_a_processor_that_cannot_see_its_cluster_neglects_nobody(reconciler_world: World) -> None:
    await reconciler_world.submit(8)
    second = await reconciler_world.submit(8, user="bob")
    await reconciler_world.turn()
    reconciler_world.cluster.refuse_look = Unavailable("the API server is away")
    await _minutes_pass(reconciler_world, 30)
    report = await neglected(reconciler_world).run()
    assert (report.sent_again, report.cancelled) == ([], [])
    assert await reconciler_world.status(second) is Status.QUEUED


async def test_a_request_with_a_longest_wait_is_cancelled_when_that_is_over_and_nobody_starts_it(
    reconciler_world: World,
) -> None:
    first = await reconciler_world.submit(8)
    await reconciler_world.turn()
    second = await _submit_with_max_wait(reconciler_world, timedelta(hours=2))
    await reconciler_world.turn()
    assert (await reconciler_world.get(second)).wait_until == reconciler_world.clock.now() + timedelta(hours=2)
    reconciler_world.clock.move(hours=2)
    await reconciler_world.cancel(first)
    await reconciler_world.turn()
    row = await reconciler_world.get(second)
    assert row.status is Status.CANCELLED
    assert row.failure_reason == "maximum wait of 2 hours reached"
    assert row.preparing_at is None


async def test_a_longest_wait_ends_when_it_starts(reconciler_world: World) -> None:
    rid = await _submit_with_max_wait(reconciler_world, timedelta(minutes=1))
    await reconciler_world.turn()
    reconciler_world.clock.move(hours=1)
    await reconciler_world.turn()
    assert await reconciler_world.status(rid) is Status.ACTIVE


async def _submit_with_max_wait(reconciler_world: World, longest: timedelta) -> ReservationId:
    draft = ReservationDraft(
        reservation_id=new_reservation_id(),
        user_id=await reconciler_world.user("bob"),
        username="bob",
        gpu_type="h100",
        gpu_count=8,
        node_count=1,
        duration=timedelta(hours=4),
        ssh_public_keys=("ssh-ed25519 AAAA test",),
        disk_name="none",
        max_wait=longest,
    )
    await reconciler_world.stores.reservations.submit(
        draft, idempotency_key=None, fingerprint="", now=reconciler_world.clock.now()
    )
    return draft.reservation_id


async def _minutes_pass(reconciler_world: World, count: float) -> None:
    """With the processor turning all the time."""
    for _ in range(round(count * 2)):
        reconciler_world.clock.move(seconds=30)
        await reconciler_world.turn(1)
