"""The stores of disk operations keep their contract, and what only the database can be asked for."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import uuid4

import asyncpg
import pytest

from contracts.disk_store_contract import NOW, DiskStoreContract, StoreWorld
from gpudev.adapters.postgres.database.pool import Connection
from gpudev.domain.disks.operations import (
    CreateDisk,
    DeleteDisk,
    DiskSettings,
    DiskState,
    Operation,
    OperationChanges,
    OperationId,
    ResizeDisk,
    UserDisks,
)
from gpudev.domain.errors import Conflict, DiskHeld, LimitReached
from gpudev.domain.ids import DiskId, ReservationId, UserId, new_disk_id, new_reservation_id
from gpudev.domain.queue import DISK_QUEUE
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.disks.acceptance import accept_request
from support.disks.disk_queries import disk_history
from support.disks.memory_store import MemoryDiskStore
from support.disks.postgres_store import PostgresStoreWorld
from support.polling import eventually_async


class MemoryStoreWorld(StoreWorld):
    def __init__(self) -> None:
        self.store: MemoryDiskStore = MemoryDiskStore()
        self.ada, self.ben = UserId(1), UserId(2)
        self.store.users = {self.ada: "ada", self.ben: "ben"}

    async def claim(self, disk_id: DiskId) -> ReservationId:
        reservation_id = new_reservation_id()
        self.store.claim(disk_id, reservation_id)
        return reservation_id

    async def release(self, disk_id: DiskId) -> None:
        self.store.release(disk_id)

    async def disks(self, user_id: UserId) -> list[DiskState]:
        return self.store.disks_of(user_id)


class TestInMemory(DiskStoreContract):
    @pytest.fixture
    async def world(self) -> AsyncIterator[StoreWorld]:  # type: ignore[override]
        yield MemoryStoreWorld()


class TestOnPostgres(DiskStoreContract):
    @pytest.fixture
    async def world(self, postgres_world: PostgresStoreWorld) -> AsyncIterator[StoreWorld]:  # type: ignore[override]
        yield postgres_world


async def test_a_message_and_a_line_of_history_come_with_the_operation(postgres_world: PostgresStoreWorld) -> None:
    asked = await postgres_world.ask(CreateDisk(new_disk_id(), "work", 20))
    [message] = await postgres_world.stores.message_queue.peek_messages(DISK_QUEUE)
    assert message.body == {"operation_id": str(asked.operation_id), "cause": "asked"}
    [line] = await disk_history(postgres_world.stores, asked.disk_id)
    assert (line["kind"], line["message"], line["by"]) == ("create", "created, 20 GB", "test")


async def test_whoever_keeps_records_sees_that_somebody_is_at_work(postgres_world: PostgresStoreWorld) -> None:
    asked = await postgres_world.ask(CreateDisk(new_disk_id(), "work", 20))
    [record] = await postgres_world.stores.disk_records.list_records()
    assert (record.operation_id, record.is_being_worked_on) == (asked.operation_id, True)
    await postgres_world.finish(asked)
    [record] = await postgres_world.stores.disk_records.list_records()
    assert (record.operation_status, record.is_being_worked_on) == ("completed", False)


async def test_with_two_at_work_the_end_of_one_is_not_the_end_of_the_work(postgres_world: PostgresStoreWorld) -> None:
    disk_id = new_disk_id()
    first = await postgres_world.ask(CreateDisk(disk_id, "work", 20))
    async with postgres_world.stores.pool.acquire() as connection:
        await connection.execute(
            "UPDATE disk_operations SET kind = 'prune' WHERE operation_id = $1", first.operation_id
        )
    second = await postgres_world.ask(ResizeDisk(disk_id, 30))
    await postgres_world.finish(second)
    [record] = await postgres_world.stores.disk_records.list_records()
    assert (record.operation_id, record.is_being_worked_on) == (first.operation_id, True)


async def test_requests_at_the_same_moment_cannot_go_over_a_limit_together(postgres_world: PostgresStoreWorld) -> None:
    asked = await asyncio.gather(
        *(postgres_world.ask(CreateDisk(new_disk_id(), f"disk-{number}", 20)) for number in range(8)),
        return_exceptions=True,
    )
    assert sum(isinstance(one, Operation) for one in asked) == 3
    assert sum(isinstance(one, LimitReached) for one in asked) == 5


async def test_a_volume_and_a_snapshot_belong_to_one_record(postgres_world: PostgresStoreWorld) -> None:
    first, second = await postgres_world.create("one"), await postgres_world.create("two")
    async with postgres_world.stores.pool.acquire() as connection:
        insert = """
            INSERT INTO disk_volumes (token, disk_id, operation_id, status, zone, size_gb, made_at, volume_id)
            SELECT gen_random_uuid(), disk_id, operation_id, 'kept', 'a', 20, asked_at, 'vol-1'
            FROM disk_operations WHERE disk_id = $1
        """
        await connection.execute(insert, first)
        with pytest.raises(asyncpg.UniqueViolationError):
            await connection.execute(insert, second)


@pytest.mark.slow
async def test_two_reservations_racing_for_one_disk_a_thousand_times_have_one_winner_each_time(
    postgres_world: PostgresStoreWorld,
) -> None:
    disk_id = await postgres_world.create()
    for _ in range(1000):
        results = await asyncio.gather(
            postgres_world.submit("work"), postgres_world.submit("work"), return_exceptions=True
        )
        winners = [one for one in results if isinstance(one, Reservation)]
        losers = [one for one in results if isinstance(one, DiskHeld)]
        assert (len(winners), len(losers)) == (1, 1), results
        assert winners[0].disk_id == disk_id
        assert str(winners[0].reservation_id)[:8] in str(losers[0])
        await postgres_world.end(winners[0].reservation_id)


async def test_a_submit_whose_disk_is_deleted_while_it_waits_gets_a_new_one_and_never_scratch_space(
    postgres_world: PostgresStoreWorld,
) -> None:
    disk_id = await postgres_world.create()
    async with postgres_world.stores.pool.transaction() as connection:
        await connection.execute("SELECT FROM disks WHERE disk_id = $1 FOR UPDATE", disk_id)
        submitting = asyncio.create_task(postgres_world.submit("work"))
        await _until_somebody_waits(connection)
        await connection.execute("UPDATE disks SET is_deleted = true, deleted_at = $2 WHERE disk_id = $1", disk_id, NOW)
    submitted = await submitting
    assert submitted.disk_name == "work"
    assert submitted.disk_id not in (None, disk_id)


async def test_a_request_waits_for_a_submit_that_claims_the_disk(postgres_world: PostgresStoreWorld) -> None:
    disk_id = await postgres_world.create()
    submit = "SELECT reservation_id FROM reservations WHERE disk_id = $1"
    async with postgres_world.stores.pool.transaction() as connection:
        await connection.execute("SELECT FROM disks WHERE disk_id = $1 FOR UPDATE", disk_id)
        deleting = asyncio.create_task(postgres_world.ask(DeleteDisk(disk_id)))
        await _until_somebody_waits(connection)
        assert await connection.fetchval(submit, disk_id) is None
        await connection.execute(
            """
            INSERT INTO reservations (reservation_id, user_id, gpu_type, gpu_count, duration_hours, ssh_public_keys,
                                      disk_id, created_at, pod_name)
            VALUES (gen_random_uuid(), $1, 'h100', 1, 1, '{key}', $2, $3, 'p')
            """,
            postgres_world.ada,
            disk_id,
            NOW,
        )
    with pytest.raises(DiskHeld):
        await deleting


@pytest.mark.slow
async def test_submits_and_deletes_at_the_same_moment_leave_the_disk_held_or_deleted_and_never_both(
    postgres_world: PostgresStoreWorld,
) -> None:
    for _ in range(100):
        disk_id = await postgres_world.create()
        submitted, deleted = await asyncio.gather(
            postgres_world.submit("work"), postgres_world.ask(DeleteDisk(disk_id)), return_exceptions=True
        )
        assert isinstance(submitted, Reservation), submitted
        assert submitted.disk_id is not None
        if isinstance(deleted, DiskHeld):
            assert submitted.disk_id == disk_id
        else:
            assert isinstance(deleted, Operation), deleted
            assert submitted.disk_id != disk_id
            await postgres_world.finish(deleted)
        await postgres_world.end(submitted.reservation_id)
        await postgres_world.finish(await postgres_world.ask(DeleteDisk(submitted.disk_id)))


async def test_a_name_that_a_submit_takes_after_we_looked_is_refused_in_words(
    postgres_world: PostgresStoreWorld,
) -> None:
    await postgres_world.submit("work")

    def decide(facts: UserDisks) -> OperationChanges | None:
        before = replace(facts, disks={})
        return accept_request(CreateDisk(new_disk_id(), "work", 20), before, OperationId(uuid4()), NOW, DiskSettings())

    with pytest.raises(Conflict, match="already"):
        await postgres_world.store.accept(postgres_world.ada, decide, now=NOW, by="test")


async def _until_somebody_waits(connection: Connection) -> None:
    await eventually_async(lambda: connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))
