"""Users, reservations and what they last saw on their disks, over a cloud and a store that may die around every call.

What the model knows is only what people see: it never looks into operations to find out what should be true.
"""

from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import uuid4

from gpudev.domain.disks.operations import (
    CloneDisk,
    CreateDisk,
    DeleteDisk,
    DiskRequest,
    DiskSettings,
    DiskState,
    MakeReady,
    Operation,
    OperationState,
    PutAway,
    RenameDisk,
    ResizeDisk,
    RestoreDisk,
    SnapshotDisk,
    SnapshotRecord,
    UndeleteDisk,
    VolumeStatus,
)
from gpudev.domain.ids import DiskId, ReservationId, UserId, new_disk_id, new_reservation_id
from gpudev.ports.cloud import OWNER_TAG
from gpudev.workflows.disks.operations import DiskOperations
from support.clock import ManualClock
from support.disks.due_operations import run_due
from support.disks.memory_cloud import Crash, MemoryCloud, Trouble
from support.disks.memory_store import MemoryDiskStore

_T = TypeVar("_T")
ADA, BEN = UserId(1), UserId(2)
SETTINGS = DiskSettings(
    default_size_gb=10,
    max_size_gb=100,
    max_per_user=3,
    max_gb_per_user=120,
    retention=timedelta(days=30),
    keep_last=2,
    keep_daily_days=3,
)


def now_or_never(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Nothing in memory ever waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("it waited for something")


@dataclass
class Stay:
    """One reservation with a disk."""

    reservation_id: ReservationId
    user_id: UserId
    disk_id: DiskId
    zone: str
    volume_id: str | None = None
    """While the disk is attached to its machine."""
    ended: bool = False


class DiskWorld:
    def __init__(self, settings: DiskSettings = SETTINGS) -> None:
        self.settings = settings
        self.clock = ManualClock()
        self.trouble = Trouble()
        self.cloud = MemoryCloud(self.clock, self.trouble)
        self.store = MemoryDiskStore(self.trouble)
        self.store.users = {ADA: "ada", BEN: "ben"}
        self.last_seen: dict[DiskId, str] = {}
        self.deleted_at: dict[DiskId, datetime] = {}
        self.stays: dict[ReservationId, Stay] = {}
        self.foreign: set[str] = set()
        self.restoring: dict[DiskId, tuple[Operation, str]] = {}
        """Who is to see what, once it is done."""
        self.cloning: dict[DiskId, tuple[Operation, str]] = {}
        self.crashes = 0
        self._writes = 0
        self.restart()

    def restart(self) -> None:
        self.actor = DiskOperations(self.store, self.cloud, self.clock, self.settings)

    # --- what people do --------------------------------------------------------------------------------------------

    def create(self, user_id: UserId, name: str, size_gb: int | None = None, zone: str | None = None) -> DiskId:
        disk_id = new_disk_id()
        self.ask(user_id, CreateDisk(disk_id, name, size_gb, zone))
        self.last_seen[disk_id] = ""
        return disk_id

    def snapshot(self, disk_id: DiskId) -> Operation:
        return self.ask(self.owner(disk_id), SnapshotDisk(disk_id))

    def restore(self, disk_id: DiskId, snapshot: SnapshotRecord) -> Operation:
        assert snapshot.cloud_id is not None
        operation = self.ask(self.owner(disk_id), RestoreDisk(disk_id, snapshot.snapshot_id))
        self.restoring[disk_id] = (operation, self.cloud.contents[snapshot.cloud_id])
        return operation

    def clone(self, source_id: DiskId, name: str, snapshot: SnapshotRecord | None = None) -> DiskId:
        disk_id = new_disk_id()
        content = self.last_seen[source_id]
        if snapshot is not None:
            assert snapshot.cloud_id is not None
            content = self.cloud.contents[snapshot.cloud_id]
        request = CloneDisk(disk_id, source_id, name, snapshot_id=snapshot and snapshot.snapshot_id)
        self.cloning[disk_id] = (self.ask(self.owner(source_id), request), content)
        return disk_id

    def rename(self, disk_id: DiskId, name: str) -> None:
        self.ask(self.owner(disk_id), RenameDisk(disk_id, name))

    def resize(self, disk_id: DiskId, size_gb: int) -> None:
        self.ask(self.owner(disk_id), ResizeDisk(disk_id, size_gb))

    def delete(self, disk_id: DiskId) -> None:
        self.ask(self.owner(disk_id), DeleteDisk(disk_id))
        self.deleted_at[disk_id] = self.clock.now()

    def undelete(self, disk_id: DiskId, name: str | None = None) -> None:
        self.look()
        self.ask(self.owner(disk_id), UndeleteDisk(disk_id, name))
        del self.deleted_at[disk_id]

    def reserve(self, disk_id: DiskId, zone: str = "zone-a") -> Stay:
        """The submit claims the disk; the launch asks for it to be made ready."""
        stay = Stay(new_reservation_id(), self.owner(disk_id), disk_id, zone)
        self.store.claim(disk_id, stay.reservation_id)
        self.stays[stay.reservation_id] = stay
        self._make_ready(stay)
        return stay

    def start(self, stay: Stay) -> bool:
        """The dev server starts if its disk is ready. What its user left must be on it."""
        if stay.volume_id is not None or stay.ended or self._make_ready(stay).state is not OperationState.DONE:
            return False
        volume_id = self.disk(stay.disk_id).volume_id
        assert volume_id is not None
        self.cloud.attach(volume_id, str(stay.reservation_id))
        stay.volume_id = volume_id
        self.look()
        found, left = self.cloud.contents[volume_id], self.last_seen.get(stay.disk_id, "")
        assert found == left, f"bytes: {left!r} was left on the disk and {found!r} is on it"
        return True

    def write(self, stay: Stay) -> None:
        assert stay.volume_id is not None
        self._writes += 1
        self.cloud.write(stay.volume_id, f"write {self._writes}")
        self.last_seen[stay.disk_id] = f"write {self._writes}"

    def end(self, stay: Stay) -> None:
        """Its time is over. Its machine lets go of the disk some time later."""
        stay.ended = True
        if self._make_ready(stay).state.is_finished:
            self._put_away(stay)

    def let_go(self, stay: Stay) -> None:
        if stay.volume_id is not None and stay.volume_id in self.cloud.volumes_there:
            self.cloud.detach(stay.volume_id)
        stay.volume_id = None

    def release(self, stay: Stay) -> bool:
        if not stay.ended:
            return False
        # One whose disk is still being made ready waits for nothing: no dev server ever had it.
        if self._make_ready(stay).state.is_finished and not self._put_away(stay).state.is_finished:
            return False
        self.store.release(stay.disk_id)
        del self.stays[stay.reservation_id]
        return True

    def _make_ready(self, stay: Stay) -> Operation:
        request = MakeReady(stay.disk_id, stay.reservation_id, stay.zone)
        return self.ask(stay.user_id, request, key=f"ready {stay.reservation_id}")

    def _put_away(self, stay: Stay) -> Operation:
        request = PutAway(stay.disk_id, stay.reservation_id)
        return self.ask(stay.user_id, request, key=f"away {stay.reservation_id}")

    def ask(self, user_id: UserId, request: DiskRequest, key: str | None = None) -> Operation:
        key = key or str(uuid4())  # whoever gets no answer asks again with the same key
        while True:
            try:
                operation = now_or_never(self.actor.request_operation(user_id, request, key=key))
            except Crash:
                self.crashed()
                continue
            assert operation is not None
            return operation

    # --- what time and others do -----------------------------------------------------------------------------------

    def work(self) -> None:
        """The processor works on everything that may go on now; it may die of it, and another one starts."""
        while True:
            try:
                now_or_never(run_due(self.actor))
                now_or_never(self.actor.settle_snapshots())
                break
            except Crash:
                self.crashed()
        self.look()

    def tidy(self) -> None:
        while True:
            try:
                now_or_never(self.actor.request_upkeep())
                break
            except Crash:
                self.crashed()
        self.work()

    def settle(self) -> None:
        """Until everything that was asked for is over; machines of what has ended let go in the end."""
        for _ in range(50):
            for stay in self.stays.values():
                if stay.ended:
                    self.let_go(stay)
            self.work()
            for stay in self.stays.values():
                if stay.ended and self._make_ready(stay).state.is_finished:
                    self._put_away(stay)
            self.cloud.complete_snapshots()
            self.clock.move(seconds=10)
            unfinished = [one for one in self.store.all_operations.values() if not one.state.is_finished]
            if not unfinished:
                self.work()
                return
        raise AssertionError(f"stuck: {unfinished[0]}")

    def crashed(self) -> None:
        self.crashes += 1
        self.restart()

    def somebody_elses_volume(self, owner: str = "ada", name: str = "work") -> str:
        volume_id = self.cloud.give_volume({OWNER_TAG: owner, "disk-name": name}, "theirs")
        self.foreign.add(volume_id)
        return volume_id

    def scanner_copies(self) -> None:
        for snapshot_id in list(self.cloud.snapshots_there):
            if snapshot_id not in self.foreign:
                self.foreign.add(self.cloud.copy_by_a_scanner(snapshot_id))

    def look(self) -> None:
        """People see that what they asked for is done, and with it, what is now theirs."""
        for disk_id, (operation, content) in list(self.restoring.items()):
            now = self.store.all_operations[operation.operation_id]
            if now.state.is_finished:
                del self.restoring[disk_id]
                if now.state is OperationState.DONE:
                    before = self.last_seen[disk_id]
                    kept = {self.cloud.contents[one.cloud_id] for one in self.good_snapshots(disk_id) if one.cloud_id}
                    kept |= {self.cloud.contents[one] for one in self.kept_volumes(disk_id)}
                    assert before in kept | {"", content}, f"bytes: what was there before restoring is lost: {before!r}"
                    self.last_seen[disk_id] = content
        for disk_id, (operation, content) in list(self.cloning.items()):
            now = self.store.all_operations[operation.operation_id]
            if now.state.is_finished:
                del self.cloning[disk_id]
                if now.state is OperationState.DONE:
                    self.last_seen[disk_id] = content
                else:
                    self.deleted_at[disk_id] = self.clock.now()

    # --- what there is ---------------------------------------------------------------------------------------------

    def disk(self, disk_id: DiskId) -> DiskState:
        return self.store.all_disks[disk_id]

    def owner(self, disk_id: DiskId) -> UserId:
        return self.disk(disk_id).user_id

    def living(self) -> list[DiskState]:
        return [one for one in self.store.all_disks.values() if not one.is_deleted]

    def kept_volumes(self, disk_id: DiskId) -> set[str]:
        """That others took the place of, and that have what no snapshot could take along."""
        store, there = self.store, self.cloud.volumes_there
        return {
            one.volume_id
            for one in store.all_volumes.values()
            if one.disk_id == disk_id and one.status is VolumeStatus.RETIRED and one.volume_id in there
            if one.saved_in is not None and store.all_snapshots[one.saved_in].lacks is not None
        }

    def good_snapshots(self, disk_id: DiskId) -> list[SnapshotRecord]:
        """Recorded as good, and really there, the oldest first."""
        return [
            one
            for one in self.store.all_snapshots.values()
            if one.disk_id == disk_id and one.status.is_usable and one.cloud_id in self.cloud.snapshots_there
        ]
