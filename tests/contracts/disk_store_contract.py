"""What every store of disk operations promises: the one on PostgreSQL, and the one in memory that models are run on."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from gpudev.domain.disks.operations import (
    CloneDisk,
    CreateDisk,
    DeleteDisk,
    DiskRequest,
    DiskSettings,
    DiskState,
    MakeReady,
    Operation,
    OperationChanges,
    OperationFacts,
    OperationId,
    OperationState,
    PutAway,
    RenameDisk,
    ResizeDisk,
    SnapshotReason,
    SnapshotRecord,
    SnapshotStatus,
    VolumeRecord,
    VolumeStatus,
)
from gpudev.domain.errors import Conflict, DiskHeld, LimitReached, NotFound, Stale
from gpudev.domain.ids import DiskId, ReservationId, UserId, new_disk_id
from gpudev.planning.disks.acceptance import accept_request
from gpudev.ports.disks import DiskOperationStore

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
SETTINGS = DiskSettings(max_per_user=3)


class StoreWorld(ABC):
    store: DiskOperationStore
    ada: UserId
    ben: UserId

    @abstractmethod
    async def claim(self, disk_id: DiskId) -> ReservationId:
        """A reservation takes it."""

    @abstractmethod
    async def release(self, disk_id: DiskId) -> None: ...

    @abstractmethod
    async def disks(self, user_id: UserId) -> list[DiskState]:
        """All that are not purged, the deleted ones too, by name and age."""

    async def ask(
        self, request: DiskRequest, user_id: UserId | None = None, key: str | None = None, now: datetime = NOW
    ) -> Operation:
        operation_id = OperationId(uuid4())
        operation = await self.store.accept(
            user_id or self.ada,
            lambda facts: accept_request(request, facts, operation_id, now, SETTINGS),
            now=now,
            by="test",
            key=key,
        )
        assert operation is not None
        return operation

    async def create(self, name: str = "work", user_id: UserId | None = None) -> DiskId:
        """Made, with nothing left to do."""
        disk_id = new_disk_id()
        await self.finish(await self.ask(CreateDisk(disk_id, name, 20), user_id))
        return disk_id

    async def facts(self, operation: Operation) -> OperationFacts:
        facts = await self.store.load_facts(operation.operation_id)
        assert facts is not None
        return facts

    async def finish(self, operation: Operation, disk: DiskState | None = None) -> Operation:
        now = (await self.facts(operation)).operation
        done = replace(
            now, state=OperationState.DONE, step="done", blocks=frozenset(), finished_at=NOW, result="as asked"
        )
        return await self.write(OperationChanges(done, disk))

    async def write(self, changes: OperationChanges) -> Operation:
        return await self.store.write_changes(changes, now=NOW, by="test")

    async def disk(self, disk_id: DiskId, user_id: UserId | None = None) -> DiskState:
        [found] = [one for one in await self.disks(user_id or self.ada) if one.disk_id == disk_id]
        return found


def snapshot_of(operation: Operation, number: int = 0, **changes: object) -> SnapshotRecord:
    record = SnapshotRecord(
        operation.snapshot_token(number),
        operation.disk_id,
        operation.operation_id,
        "vol-1",
        SnapshotReason.ASKED,
        SnapshotStatus.PENDING,
        NOW + timedelta(minutes=number),
        cloud_id=f"snap-{operation.snapshot_token(number)}",
        size_gb=20,
    )
    return replace(record, **changes)  # type: ignore[arg-type]


class DiskStoreContract:
    @pytest.fixture
    async def world(self) -> AsyncIterator[StoreWorld]:
        raise NotImplementedError("a store's tests give the world")
        yield

    async def test_what_was_asked_for_is_found_as_it_was_asked(self, world: StoreWorld) -> None:
        disk_id = new_disk_id()
        asked = await world.ask(CreateDisk(disk_id, "work", 20, "zone-a"))
        assert (asked.seq > 0, asked.version, asked.state) == (True, 1, OperationState.WAITING)
        assert await world.store.find_operation(asked.operation_id) == asked
        facts = await world.facts(asked)
        assert facts.operation == asked
        assert (facts.disk.name, facts.disk.size_gb, facts.disk.username, facts.before) == ("work", 20, "ada", None)
        assert await world.store.due(NOW) == [asked.operation_id]
        assert await world.store.load_facts(OperationId(uuid4())) is None

    async def test_the_same_key_gives_the_same_answer_and_only_to_its_user(self, world: StoreWorld) -> None:
        request = CreateDisk(new_disk_id(), "work", 20)
        first, again = await world.ask(request, key="k"), await world.ask(request, key="k")
        assert first == again
        assert len(await world.disks(world.ada)) == 1
        other = await world.ask(CreateDisk(new_disk_id(), "work", 20), world.ben, key="k")
        assert other.operation_id != first.operation_id

    async def test_what_is_refused_changes_nothing(self, world: StoreWorld) -> None:
        disk_id = await world.create()
        before = await world.disk(disk_id)
        with pytest.raises(Conflict):
            await world.ask(CreateDisk(new_disk_id(), "work", 20))
        with pytest.raises(NotFound):
            await world.ask(DeleteDisk(disk_id), world.ben)
        for name in ("two", "three"):
            await world.create(name)
        with pytest.raises(LimitReached):
            await world.ask(CreateDisk(new_disk_id(), "four", 20))
        assert await world.disk(disk_id) == before
        assert await world.store.due(NOW) == []

    async def test_a_write_that_comes_second_changes_nothing(self, world: StoreWorld) -> None:
        asked = await world.ask(CreateDisk(new_disk_id(), "work", 20))
        written = await world.write(OperationChanges(replace(asked, step="first")))
        assert (written.version, written.step) == (2, "first")
        with pytest.raises(Stale):
            await world.write(OperationChanges(replace(asked, step="second"), snapshots=(snapshot_of(asked),)))
        assert (await world.facts(asked)).operation == written
        assert await world.store.snapshots(asked.disk_id) == []

    async def test_a_disk_that_somebody_changed_meanwhile_is_not_written(self, world: StoreWorld) -> None:
        disk_id = await world.create()
        asked = await world.ask(ResizeDisk(disk_id, 30))
        facts = await world.facts(asked)
        await world.claim(disk_id)
        with pytest.raises(Stale):
            await world.write(OperationChanges(replace(asked, step="grown"), replace(facts.disk, size_gb=30)))
        now = await world.facts(asked)
        assert (now.operation, now.disk.size_gb) == (asked, 20)
        await world.write(OperationChanges(asked, replace(now.disk, size_gb=30)))
        assert (await world.facts(asked)).disk.size_gb == 30

    async def test_nothing_is_written_to_what_is_over(self, world: StoreWorld) -> None:
        disk_id = await world.create()
        done = await world.finish(await world.ask(ResizeDisk(disk_id, 30)))
        assert (done.state, done.result, done.finished_at) == (OperationState.DONE, "as asked", NOW)
        assert await world.store.due(NOW + timedelta(days=1)) == []
        assert await world.store.next_due() is None

    async def test_everything_of_a_disk_is_kept(self, world: StoreWorld) -> None:
        disk_id = await world.create()
        asked = await world.ask(ResizeDisk(disk_id, 30))
        facts = await world.facts(asked)
        snapshot = snapshot_of(asked, contents="listing-1", error="none yet")
        volume = VolumeRecord(
            asked.volume_token, disk_id, asked.operation_id, VolumeStatus.KEPT, "zone-a", 20, NOW, volume_id="vol-1"
        )
        disk = replace(
            facts.disk, volume_id="vol-1", zone="zone-a", saved_as=snapshot.snapshot_id, contents="listing-1"
        )
        going_on = replace(
            asked,
            state=OperationState.RUNNING,
            attempts=3,
            rejections=2,
            error="not yet",
            next_attempt_at=NOW + timedelta(seconds=4),
        )
        await world.write(OperationChanges(going_on, disk, (snapshot,), (volume,), "something happened"))
        now = await world.facts(asked)
        assert now.operation == replace(going_on, version=2)
        assert replace(now.disk, mark=disk.mark) == disk
        assert (now.snapshots, now.volumes) == ((snapshot,), (volume,))
        assert await world.store.due(NOW) == []
        assert await world.store.next_due() == NOW + timedelta(seconds=4)
        assert await world.store.due(NOW + timedelta(seconds=4)) == [asked.operation_id]
        retired = replace(volume, status=VolumeStatus.RETIRED, retired_by=asked.operation_id, saved_in=disk.saved_as)
        await world.write(
            OperationChanges(now.operation, None, (replace(snapshot, status=SnapshotStatus.COMPLETED),), (retired,))
        )
        now = await world.facts(asked)
        assert [one.status for one in now.snapshots] == [SnapshotStatus.COMPLETED]
        assert now.volumes == (retired,)

    async def test_operations_of_one_disk_follow_each_other(self, world: StoreWorld) -> None:
        disk_id, other = await world.create(), await world.create("other")
        reservation_id = await world.claim(disk_id)
        first = await world.ask(MakeReady(disk_id, reservation_id))
        second = await world.ask(PutAway(disk_id, reservation_id))
        elsewhere = await world.ask(ResizeDisk(other, 30))
        assert (await world.facts(first)).before is None
        assert (await world.facts(second)).before == first
        assert (await world.facts(elsewhere)).before is None
        late = replace(second, next_attempt_at=NOW + timedelta(hours=1))
        await world.write(OperationChanges(late))
        await world.finish(first)
        assert (await world.facts(second)).before is None
        assert second.operation_id in await world.store.due(NOW), "its turn has come, and it was not told"

    async def test_a_clone_goes_before_what_comes_later_on_either_disk(self, world: StoreWorld) -> None:
        source = await world.create()
        asked = await world.ask(ResizeDisk(source, 30))
        facts = await world.facts(asked)
        await world.finish(asked, replace(facts.disk, volume_id="vol-1"))
        cloning = await world.ask(CloneDisk(new_disk_id(), source, "copy"))
        facts = await world.facts(cloning)
        assert facts.source is not None
        assert (facts.source.disk_id, facts.source.volume_id, facts.disk.name) == (source, "vol-1", "copy")
        reservation_id = await world.claim(source)
        ready = await world.ask(MakeReady(source, reservation_id))
        assert (await world.facts(ready)).before == cloning
        begun = snapshot_of(cloning, disk_id=source)
        await world.write(OperationChanges(replace(cloning, blocks=frozenset({cloning.disk_id})), snapshots=(begun,)))
        assert (await world.facts(ready)).before is None
        assert (await world.facts(cloning)).snapshots == (begun,)

    async def test_who_holds_a_disk_is_known(self, world: StoreWorld) -> None:
        disk_id = await world.create()
        reservation_id = await world.claim(disk_id)
        assert (await world.disk(disk_id)).holder == reservation_id
        with pytest.raises(DiskHeld, match=str(reservation_id)[:8]):
            await world.ask(DeleteDisk(disk_id))
        await world.release(disk_id)
        assert (await world.disk(disk_id)).holder is None
        await world.ask(DeleteDisk(disk_id))
        assert (await world.disk(disk_id)).is_deleted

    async def test_names_are_unique_among_the_living_of_one_user(self, world: StoreWorld) -> None:
        first = await world.create()
        await world.finish(await world.ask(DeleteDisk(first)))
        second = await world.create()
        third = await world.create("play")
        with pytest.raises(Conflict):
            await world.ask(RenameDisk(third, "work"))
        await world.create("work", world.ben)
        names = [(one.name, one.is_deleted) for one in await world.disks(world.ada)]
        assert sorted(names) == [("play", False), ("work", False), ("work", True)]
        assert second != first

    async def test_pending_snapshots_are_settled_once_and_only_when_nobody_waits_for_them(
        self, world: StoreWorld
    ) -> None:
        disk_id = await world.create()
        asked = await world.ask(ResizeDisk(disk_id, 30))
        record = snapshot_of(asked)
        written = await world.write(OperationChanges(asked, snapshots=(record,)))
        assert await world.store.list_pending_snapshots() == []
        await world.finish(written)
        assert await world.store.list_pending_snapshots() == [record]
        completed = replace(record, status=SnapshotStatus.COMPLETED, lacks="1 that cannot be read: data")
        assert await world.store.finish_snapshot(completed, now=NOW, event="it lacks something")
        assert not await world.store.finish_snapshot(replace(record, status=SnapshotStatus.FAILED), now=NOW)
        assert await world.store.list_pending_snapshots() == []
        assert await world.store.snapshots(disk_id) == [completed]

    async def test_disks_whose_time_has_come_are_named(self, world: StoreWorld) -> None:
        gone, kept = await world.create("gone"), await world.create("kept")
        await world.finish(await world.ask(DeleteDisk(gone)))
        assert await world.store.list_deleted_before(NOW - timedelta(seconds=1)) == []
        assert [one.disk_id for one in await world.store.list_deleted_before(NOW)] == [gone]
        assert await world.store.list_with_snapshots() == []
        asked = await world.ask(ResizeDisk(kept, 30))
        await world.write(OperationChanges(asked, snapshots=(snapshot_of(asked),)))
        [upkeep] = await world.store.list_with_snapshots()
        assert (upkeep.user_id, upkeep.disk_id) == (world.ada, kept)

    async def test_operations_and_snapshots_are_told_the_newest_first(self, world: StoreWorld) -> None:
        disk_id = await world.create()
        asked = await world.ask(ResizeDisk(disk_id, 30))
        records = tuple(snapshot_of(asked, number) for number in range(3))
        await world.write(OperationChanges(asked, snapshots=records))
        assert await world.store.snapshots(disk_id) == list(reversed(records))
        kinds = [one.kind for one in await world.store.operations(disk_id)]
        assert kinds == ["resize", "create"]
        assert len(await world.store.operations(disk_id, limit=1)) == 1
