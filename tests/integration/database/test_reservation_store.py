"""The reservation store: one transaction for row and message, guarded writes, one owner per disk."""

import asyncio
from datetime import timedelta

import pytest
import structlog

from gpudev.adapters.postgres.stores import Stores
from gpudev.domain.access.users import Role
from gpudev.domain.cluster import NodeShare
from gpudev.domain.errors import DiskHeld, IdempotencyMismatch, IllegalTransition, LeaseLost, Stale
from gpudev.domain.ids import ReservationId, UserId, new_reservation_id
from gpudev.domain.queue import RESERVATION_QUEUE, MessageCause
from gpudev.domain.reservations.changes import Change, NewEvent
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation, ReservationDraft
from gpudev.ports.leases import Lease
from gpudev.ports.reservations import NO_LIMITS, JobQuery, UserLimits
from support.clock import ManualClock


class Desk:
    """Submits and changes for tests, with one user."""

    def __init__(self, stores: Stores, clock: ManualClock, user_id: UserId) -> None:
        self.stores, self.clock, self.user_id = stores, clock, user_id

    def draft(self, **changes: object) -> ReservationDraft:
        values: dict[str, object] = {
            "reservation_id": new_reservation_id(),
            "user_id": self.user_id,
            "username": "ada",
            "gpu_type": "h100",
            "gpu_count": 1,
            "node_count": 1,
            "duration": timedelta(hours=1),
            "ssh_public_keys": ("ssh-ed25519 AAAA",),
        }
        return ReservationDraft(**(values | changes))  # type: ignore[arg-type]

    async def decide(self, lease: Lease, change: Change) -> frozenset[ReservationId]:
        return await self.stores.reservations.apply_decisions(
            lease, [change], {}, [], now=self.clock.now(), teardown_margin=timedelta(0)
        )

    async def submit(
        self, draft: ReservationDraft | None = None, key: str | None = None, fingerprint: str = "f"
    ) -> Reservation:
        return await self.stores.reservations.submit(
            draft or self.draft(), idempotency_key=key, fingerprint=fingerprint, now=self.clock.now()
        )

    async def move(self, row: Reservation, to: Status, **kwargs: object) -> Reservation:
        change = Change(row.reservation_id, row.status, row.version, NewEvent(to.value, "by a test"), to=to, **kwargs)  # type: ignore[arg-type]
        return await self.stores.reservations.apply_change(change, now=self.clock.now())

    async def holder(self, row: Reservation) -> ReservationId | None:
        """Of its disk."""
        assert row.disk_id is not None
        attachment = await self.stores.attachments.find_attachment(row.disk_id, row.reservation_id)
        assert attachment is not None
        return attachment.disk.holder

    async def release(self, row: Reservation) -> Reservation:
        change = Change(row.reservation_id, row.status, row.version, NewEvent("released", "gone"), release=True)
        return await self.stores.reservations.apply_change(change, now=self.clock.now())


@pytest.fixture
async def desk(stores: Stores, clock: ManualClock) -> Desk:
    user = await stores.users.add_user("ada", Role.USER)
    return Desk(stores, clock, user.user_id)


async def test_row_history_and_message_come_together(desk: Desk) -> None:
    row = await desk.submit()
    assert row.status is Status.PENDING
    messages = await desk.stores.message_queue.read(RESERVATION_QUEUE, timedelta(seconds=5), 10)
    assert [message.body["reservation_id"] for message in messages] == [str(row.reservation_id)]
    assert [event.kind for event in await desk.stores.reservations.events(row.reservation_id)] == ["submitted"]


async def test_the_answer_to_a_submit_is_the_row_that_was_written(desk: Desk) -> None:
    for draft in (desk.draft(), desk.draft(disk_name="none"), desk.draft(disk_name="data", name="x", github_user="y")):
        assert await desk.submit(draft) == await desk.stores.reservations.find_reservation(draft.reservation_id)


@pytest.mark.parametrize("limits", [NO_LIMITS, UserLimits(max_queued=9)])
@pytest.mark.parametrize("max_wait", [None, timedelta(hours=1)])
async def test_the_row_says_which_request_made_it(desk: Desk, limits: UserLimits, max_wait: timedelta | None) -> None:
    async def submit() -> tuple[str | None, str | None]:
        draft = desk.draft(max_wait=max_wait)
        submitted = await desk.stores.reservations.submit(
            draft, idempotency_key=None, fingerprint="f", now=desk.clock.now(), limits=limits
        )
        written = await desk.stores.reservations.find_reservation(draft.reservation_id)
        assert written is not None
        return submitted.request_id, written.request_id

    with structlog.contextvars.bound_contextvars(request_id="from-ada"):
        assert await submit() == ("from-ada", "from-ada")
    assert await submit() == (None, None), "whoever has none has not the one before"


async def test_the_same_key_and_request_give_the_first_answer_again_even_at_once(desk: Desk) -> None:
    answers = await asyncio.gather(*(desk.submit(key="k") for _ in range(8)))
    assert len({row.reservation_id for row in answers}) == 1
    assert len(await desk.stores.reservations.unreleased()) == 1


async def test_the_same_key_with_another_request_is_refused(desk: Desk) -> None:
    await desk.submit(key="k", fingerprint="one")
    with pytest.raises(IdempotencyMismatch):
        await desk.submit(key="k", fingerprint="two")


async def test_a_stale_write_changes_nothing(desk: Desk) -> None:
    row = await desk.submit()
    await desk.move(row, Status.CANCELLED)
    with pytest.raises(Stale):
        await desk.move(row, Status.QUEUED)
    now = await desk.stores.reservations.find_reservation(row.reservation_id)
    assert now is not None
    assert now.status is Status.CANCELLED


def test_an_illegal_move_cannot_even_be_written_down() -> None:
    with pytest.raises(IllegalTransition, match="active cannot become queued"):
        Change(new_reservation_id(), Status.ACTIVE, 1, None, to=Status.QUEUED)


async def test_a_disk_has_one_holder_until_it_is_released(desk: Desk) -> None:
    first = await desk.submit(desk.draft(disk_name="data"))
    with pytest.raises(DiskHeld, match=str(first.reservation_id)[:8]):
        await desk.submit(desk.draft(disk_name="data"))
    ended = await desk.move(first, Status.CANCELLED)
    successor = await desk.submit(desk.draft(disk_name="data"))
    assert successor.disk_id == first.disk_id
    assert await desk.holder(successor) == first.reservation_id
    with pytest.raises(DiskHeld, match=str(successor.reservation_id)[:8]):
        await desk.submit(desk.draft(disk_name="data"))
    await desk.release(ended)
    assert await desk.holder(successor) == successor.reservation_id


async def test_a_successor_that_gives_up_leaves_the_disk_to_the_next(desk: Desk) -> None:
    first = await desk.submit()
    ended = await desk.move(first, Status.CANCELLED)
    second = await desk.submit()
    given_up = await desk.move(second, Status.CANCELLED)
    third = await desk.submit()
    assert (third.disk_id, third.scratch_reason) == (first.disk_id, None)
    await desk.release(given_up)
    assert await desk.holder(third) == first.reservation_id, "it still has a dev server"
    await desk.release(ended)
    assert await desk.holder(third) == third.reservation_id


async def test_of_many_racing_for_one_disk_exactly_one_wins(desk: Desk) -> None:
    results = await asyncio.gather(
        *(desk.submit(desk.draft(disk_name="data")) for _ in range(12)), return_exceptions=True
    )
    assert sum(isinstance(result, Reservation) for result in results) == 1
    assert sum(isinstance(result, DiskHeld) for result in results) == 11


async def test_without_a_name_the_default_disk_is_taken_and_the_next_is_told_of_its_scratch_home(desk: Desk) -> None:
    first, second = await desk.submit(), await desk.submit()
    assert (first.disk_name, second.disk_name) == ("default", None)
    [told] = await desk.stores.reservations.events(second.reservation_id)
    assert "scratch" in told.message


async def test_who_gets_scratch_space_unasked_is_told_which_reservation_has_the_disk(desk: Desk) -> None:
    first = await desk.submit(desk.draft(name="train"))
    second, asked = await desk.submit(), await desk.submit(desk.draft(disk_name="none"))
    reason = f"disk 'default' is in use by reservation {str(first.reservation_id)[:8]} (train)"
    assert (second.scratch_reason, asked.scratch_reason) == (reason, None)
    [told] = await desk.stores.reservations.events(second.reservation_id)
    assert told.message == f"submitted; /home/dev is scratch space, because {reason}"
    written = await desk.stores.reservations.find_reservation(second.reservation_id)
    assert written is not None
    assert written.scratch_reason == reason


async def test_the_command_of_a_client_is_kept(desk: Desk) -> None:
    row = await desk.submit(desk.draft(command="python train.py"))
    written = await desk.stores.reservations.find_reservation(row.reservation_id)
    assert written is not None
    assert (row.command, written.command) == ("python train.py", "python train.py")


async def test_two_reservations_can_never_hold_one_gpu(desk: Desk) -> None:
    import asyncpg

    rows = [await desk.submit(desk.draft(disk_name="none")) for _ in range(2)]
    await desk.move(rows[0], Status.PREPARING, shares=(NodeShare(0, "node-1", 1, (3,)),))
    with pytest.raises(asyncpg.UniqueViolationError):
        await desk.move(rows[1], Status.PREPARING, shares=(NodeShare(0, "node-1", 1, (3,)),))


async def test_shortened_ids_find_their_own(desk: Desk) -> None:
    row = await desk.submit()
    found = await desk.stores.reservations.find_by_prefix(str(row.reservation_id)[:6], desk.user_id)
    assert [r.reservation_id for r in found] == [row.reservation_id]
    assert await desk.stores.reservations.find_by_prefix(str(row.reservation_id)[:6], UserId(999)) == []


async def test_pages_follow_each_other_without_gap_or_repeat(desk: Desk) -> None:
    rows = [await desk.submit(desk.draft(disk_name="none")) for _ in range(5)]
    seen: list[ReservationId] = []
    before: int | None = None
    while page := await desk.stores.reservations.list_jobs(JobQuery(desk.user_id, before_seq=before, limit=2)):
        seen += [row.reservation_id for row in page]
        before = page[-1].seq
    assert seen == [row.reservation_id for row in reversed(rows)]


async def test_a_write_with_an_older_epoch_changes_nothing(desk: Desk) -> None:
    row = await desk.submit()
    lease = await desk.stores.leases.acquire("planning", "one", timedelta(seconds=30))
    assert lease is not None
    change = Change(row.reservation_id, row.status, row.version, NewEvent("queued", "x"), to=Status.QUEUED)
    with pytest.raises(LeaseLost):
        old = Lease("planning", "one", lease.epoch - 1)
        await desk.decide(old, change)
    done = await desk.decide(lease, change)
    assert done == {row.reservation_id}


async def test_a_users_act_leaves_a_message_with_its_cause(desk: Desk) -> None:
    row = await desk.submit()
    change = Change(
        row.reservation_id, row.status, row.version, NewEvent("cancelled", "by its owner"), to=Status.CANCELLED
    )
    await desk.stores.reservations.apply_change(change, now=desk.clock.now(), cause=MessageCause.CANCELLED)
    messages = await desk.stores.message_queue.read(RESERVATION_QUEUE, timedelta(seconds=5), 10)
    assert [message.body["cause"] for message in messages] == ["submitted", "cancelled"]
