"""What people do with their disks: asked for here, carried out by the processor, looked at here again.

A disk is found by its name under the same lock under which the request is decided, so that nothing can be renamed,
deleted or claimed in between. What is allowed is decided in `planning.disks.acceptance`.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from uuid import UUID, uuid4, uuid5

from gpudev.domain.access.users import User
from gpudev.domain.disk_requests import (
    CloneDisk,
    CreateDisk,
    DeleteDisk,
    PersonsRequest,
    RenameDisk,
    ResizeDisk,
    RestoreDisk,
    SnapshotDisk,
    UndeleteDisk,
)
from gpudev.domain.disks.names import check_disk_name, check_new_disk_name
from gpudev.domain.disks.operations import (
    Changes,
    DiskSettings,
    Operation,
    OperationId,
    UserDisks,
)
from gpudev.domain.errors import IdempotencyMismatch, Invalid, NotFound
from gpudev.domain.ids import DiskId, new_disk_id
from gpudev.planning.disks.acceptance import accept
from gpudev.planning.disks.lookup import (
    deleted_disk,
    failures,
    living_disk,
    living_or_deleted_disk,
    operation_of,
    snapshot_of,
)
from gpudev.ports.clock import Clock
from gpudev.ports.disks import DiskOperationStore, DiskOverview, DiskViews
from gpudev.wire.disks import (
    CloneDiskRequest,
    ContentsView,
    CreateDiskRequest,
    DiskDetails,
    DiskView,
    OperationView,
    RenameDiskRequest,
    ResizeDiskRequest,
    RestoreDiskRequest,
    SnapshotView,
)
from gpudev.workflows.viewing_disks import (
    Depths,
    contents_view,
    disk_details,
    disk_view,
    operation_view,
    snapshot_views,
)

_OPERATIONS = UUID("5d0f2b86-6a52-4d0f-9f5c-3c1a5a7c9e10")
"""Under which the ids of operations that were asked for with a key are made."""
_PREFIX = "asked "
"""Before people's own keys: the system has keys, too, and nobody may use one of those. No key has a space."""
_MOST_OPERATIONS = 200
"""That are looked through for the beginning of an id."""

Ask = CreateDiskRequest | RestoreDiskRequest | RenameDiskRequest | ResizeDiskRequest | CloneDiskRequest | None
Choose = Callable[[UserDisks], PersonsRequest]


@dataclass(frozen=True, slots=True)
class Asked:
    operation: OperationView
    replayed: bool
    """True: this Idempotency-Key was answered before; nothing was written now."""


@dataclass(frozen=True, slots=True)
class ManagingDisks:
    store: DiskOperationStore
    views: DiskViews
    clock: Clock
    settings: DiskSettings = field(default_factory=DiskSettings)
    has_disks: bool = True
    """False: every home is scratch space here."""

    # --- what is asked for -----------------------------------------------------------------------------------------

    async def create(self, user: User, ask: CreateDiskRequest, key: str | None) -> Asked:
        if not self.has_disks:
            raise Invalid("this cluster has no disks: /home/dev is scratch space", field="disk_name")
        check_new_disk_name(ask.disk_name)
        disk_id = new_disk_id()
        return await self._ask(
            user, _Wish("create", ask.disk_name, ask, key), lambda _: CreateDisk(disk_id, ask.disk_name, ask.size_gb)
        )

    async def delete(self, user: User, name: str, key: str | None) -> Asked:
        return await self._ask(user, _Wish("delete", name, None, key), lambda facts: DeleteDisk(_living(facts, name)))

    async def snapshot(self, user: User, name: str, key: str | None) -> Asked:
        return await self._ask(
            user, _Wish("snapshot", name, None, key), lambda facts: SnapshotDisk(_living(facts, name))
        )

    async def resize(self, user: User, name: str, ask: ResizeDiskRequest, key: str | None) -> Asked:
        return await self._ask(
            user, _Wish("resize", name, ask, key), lambda facts: ResizeDisk(_living(facts, name), ask.size_gb)
        )

    async def rename(self, user: User, name: str, ask: RenameDiskRequest, key: str | None) -> Asked:
        check_new_disk_name(ask.new_name, "new_name")
        return await self._ask(
            user, _Wish("rename", name, ask, key), lambda facts: RenameDisk(_living(facts, name), ask.new_name)
        )

    async def clone(self, user: User, name: str, ask: CloneDiskRequest, key: str | None) -> Asked:
        check_new_disk_name(ask.new_name, "new_name")
        disk_id = new_disk_id()

        def choose(facts: UserDisks) -> CloneDisk:
            source = living_disk(facts.disks.values(), name)
            snapshot = None
            if ask.snapshot_id is not None:
                snapshot = snapshot_of(facts.snapshots, source, ask.snapshot_id).snapshot_id
            return CloneDisk(disk_id, source.disk_id, ask.new_name, ask.size_gb, snapshot)

        return await self._ask(user, _Wish("clone", name, ask, key), choose)

    async def restore(self, user: User, name: str, ask: RestoreDiskRequest, key: str | None) -> Asked:
        """Without a snapshot: undo a delete."""
        if ask.new_name is not None:
            check_new_disk_name(ask.new_name, "new_name")
        if ask.snapshot_id is not None:
            for given, text in (("new_name", ask.new_name), ("disk_id", ask.disk_id)):
                if text is not None:
                    raise Invalid(f"{given} is for undoing a delete; a clone makes a snapshot a new disk", field=given)

        def choose(facts: UserDisks) -> PersonsRequest:
            disks = facts.disks.values()
            if ask.snapshot_id is None:
                return UndeleteDisk(deleted_disk(disks, name, ask.disk_id).disk_id, ask.new_name)
            disk = living_or_deleted_disk(disks, name)  # that a deleted one comes first is said where it is decided
            return RestoreDisk(disk.disk_id, snapshot_of(facts.snapshots, disk, ask.snapshot_id).snapshot_id)

        return await self._ask(user, _Wish("restore", name, ask, key), choose)

    # --- what is looked at -----------------------------------------------------------------------------------------

    async def disks(self, user: User, *, deleted: bool) -> list[DiskView]:
        found = await self.views.of_user(user.user_id)
        shown = [one for one in found if not one.state.is_deleted or (deleted and one.state.purge_started_at is None)]
        shown += failures(found, self.clock.now())
        shown.sort(key=lambda one: (one.state.name, one.state.created_at))
        return [disk_view(one, self.settings.retention) for one in shown]

    async def details(self, user: User, name: str, *, deleted: bool) -> DiskDetails:
        disk = await self._find(user, name, deleted=deleted)
        disk_id = disk.state.disk_id
        depths = Depths(
            snapshots=await self.store.snapshots(disk_id),
            totals=await self.views.totals(disk_id),
            history=await self.views.history(disk_id),
            listing=await self.views.listing(disk_id),
        )
        return disk_details(disk, depths, self.settings.retention)

    async def snapshots(self, user: User, name: str, *, deleted: bool) -> list[SnapshotView]:
        disk = (await self._find(user, name, deleted=deleted)).state
        return snapshot_views(await self.store.snapshots(disk.disk_id), disk, await self.views.totals(disk.disk_id))

    async def contents(self, user: User, name: str, snapshot_id: str | None, *, deleted: bool) -> ContentsView:
        disk = (await self._find(user, name, deleted=deleted)).state
        chosen = None
        if snapshot_id is not None:
            chosen = snapshot_of(await self.store.snapshots(disk.disk_id), disk, snapshot_id).snapshot_id
        listing = await self.views.listing(disk.disk_id, chosen)
        if listing is None:
            what = f"disk {name!r}" if chosen is None else f"that snapshot of disk {name!r}"
            raise NotFound(f"there is no listing of {what} yet; one is made with each snapshot")
        return contents_view(listing)

    async def operations(self, user: User, name: str, *, deleted: bool) -> list[OperationView]:
        disk = (await self._find(user, name, deleted=deleted)).state
        return [operation_view(one, disk.name) for one in await self.store.operations(disk.disk_id)]

    async def operation(self, user: User, name: str, operation_id: str) -> OperationView:
        """Also of one that is deleted by now: deleting is an operation, too."""
        check_disk_name(name)
        called_so = [one.state for one in await self.views.of_user(user.user_id) if one.state.name == name]
        if not called_so:
            raise NotFound(f"you have no disk {name!r}")
        found = await self._find_operation(operation_id)
        if found is None or found.disk_id not in {disk.disk_id for disk in called_so}:
            newest = [one for disk in called_so for one in await self.store.operations(disk.disk_id, _MOST_OPERATIONS)]
            found = operation_of(newest, name, operation_id)
        return operation_view(found, name)

    async def _find_operation(self, text: str) -> Operation | None:
        """By a whole id, however long ago it was."""
        try:
            return await self.store.find_operation(OperationId(UUID(text)))
        except ValueError:
            return None

    async def _find(self, user: User, name: str, *, deleted: bool) -> DiskOverview:
        disks = await self.views.of_user(user.user_id)
        for failed in failures(disks, self.clock.now()):
            if failed.state.name == name and not deleted:
                return failed
        found = {one.state.disk_id: one for one in disks}
        states = [one.state for one in disks]
        chosen = living_or_deleted_disk(states, name) if deleted else living_disk(states, name)
        return found[chosen.disk_id]

    async def _ask(self, user: User, wish: "_Wish", choose: Choose) -> Asked:
        now = self.clock.now()
        operation_id = wish.operation_id(user)
        written = False

        def decide(facts: UserDisks) -> Changes | None:
            nonlocal written
            changes = accept(choose(facts), facts, operation_id, now, self.settings)
            written = True
            return changes

        operation = await self.store.accept(user.user_id, decide, now=now, by=user.username, key=wish.stored_key)
        assert operation is not None  # whatever people ask for is something to do
        if operation.operation_id != operation_id:
            raise IdempotencyMismatch("this Idempotency-Key was used for another request; use a new one")
        disk = await self.views.find(operation.disk_id)
        assert disk is not None  # the operation refers to it
        return Asked(operation_view(operation, disk.state.name), replayed=not written)


@dataclass(frozen=True, slots=True)
class _Wish:
    """A request as it was made, to tell it from any other under the same key."""

    kind: str
    name: str
    ask: Ask
    key: str | None

    @property
    def stored_key(self) -> str | None:
        return None if self.key is None else _PREFIX + self.key

    def operation_id(self, user: User) -> OperationId:
        """With a key, one that is the same for the same request and for no other."""
        if self.key is None:
            return OperationId(uuid4())
        text = json.dumps([user.user_id, asdict(self)], sort_keys=True, ensure_ascii=True)
        return OperationId(uuid5(_OPERATIONS, text))


def _living(facts: UserDisks, name: str) -> DiskId:
    return living_disk(facts.disks.values(), name).disk_id
