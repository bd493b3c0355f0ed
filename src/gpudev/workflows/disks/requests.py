"""Disk requests of users: accepted here, carried out by the processor.

A disk is looked up by name under the same lock under which the request is decided, so that it cannot be renamed,
deleted or claimed in between. `planning.disks.acceptance` decides what is allowed.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from uuid import UUID, uuid4, uuid5

from gpudev.domain.access.users import User
from gpudev.domain.disks.names import check_disk_name, check_new_disk_name
from gpudev.domain.disks.operations import (
    CloneDisk,
    CreateDisk,
    DeleteDisk,
    DiskSettings,
    DiskState,
    Operation,
    OperationChanges,
    OperationId,
    RecordedSnapshotId,
    RenameDisk,
    ResizeDisk,
    RestoreDisk,
    SnapshotDisk,
    SnapshotRecord,
    UndeleteDisk,
    UserDiskRequest,
    UserDisks,
)
from gpudev.domain.errors import IdempotencyMismatch, Invalid, NotFound
from gpudev.domain.ids import DiskId, new_disk_id
from gpudev.planning.disks.acceptance import accept_request
from gpudev.planning.disks.lookup import (
    failed_creations,
    get_deleted_disk,
    get_living_disk,
    get_living_or_deleted_disk,
    get_operation,
    get_snapshot,
    is_listed,
    was_never_made,
)
from gpudev.ports.clock import Clock
from gpudev.ports.disks import ContentsTotals, DiskEvent, DiskOperationStore, DiskOverview, DiskViews, SnapshotContents
from gpudev.wire.disks import (
    CloneDiskRequest,
    ContentsEntry,
    ContentsView,
    CreateDiskRequest,
    DiskDetails,
    DiskEventView,
    DiskView,
    OperationView,
    RenameDiskRequest,
    ResizeDiskRequest,
    RestoreDiskRequest,
    SnapshotView,
)

# Disks as wire models. Pure.


def disk_view(disk: DiskOverview, retention: timedelta) -> DiskView:
    state, latest = disk.state, disk.latest
    is_deleted = state.is_deleted and not was_never_made(disk)
    return DiskView(
        disk_id=str(state.disk_id),
        disk_name=state.name,
        state=_disk_state(disk),
        size_gb=state.size_gb,
        created_at=state.created_at,
        last_used=disk.last_used,
        in_use=state.holder is not None or (disk.is_attached and not state.is_deleted),
        reservation_id=None if state.holder is None else str(state.holder),
        is_deleted=is_deleted,
        deleted_at=state.deleted_at if is_deleted else None,
        restorable_until=_restorable_until(state, retention),
        snapshot_count=disk.snapshot_count,
        last_snapshot_at=disk.last_snapshot_at,
        is_backing_up=disk.is_backing_up,
        volume_id=state.volume_id,
        volume_missing_since=disk.volume_missing_since,
        zone=state.zone,
        operation=None if latest is None else operation_view(latest, state.name),
    )


@dataclass(frozen=True, slots=True)
class DiskDetailInput:
    """The facts about one disk beside its row."""

    snapshots: Sequence[SnapshotRecord]
    totals: Mapping[RecordedSnapshotId, ContentsTotals]
    history: Sequence[DiskEvent]
    listing: SnapshotContents | None


def disk_details(disk: DiskOverview, more: DiskDetailInput, retention: timedelta) -> DiskDetails:
    return DiskDetails(
        **vars(disk_view(disk, retention)),
        snapshots=snapshot_views(more.snapshots, disk.state, more.totals),
        history=[DiskEventView(at=each.at, kind=each.kind, message=each.message, by=each.by) for each in more.history],
        contents=None if more.listing is None else contents_view(more.listing),
    )


def operation_view(operation: Operation, disk_name: str) -> OperationView:
    return OperationView(
        operation_id=str(operation.operation_id),
        kind=operation.kind.value,
        disk_id=str(operation.disk_id),
        disk_name=disk_name,
        state=operation.state.value,
        step=operation.step,
        result=operation.result,
        error=operation.error,
        asked_at=operation.asked_at,
        finished_at=operation.finished_at,
        reservation_id=None if operation.reservation_id is None else str(operation.reservation_id),
        snapshot_id=None if operation.snapshot_id is None else str(operation.snapshot_id),
    )


def snapshot_views(
    snapshots: Iterable[SnapshotRecord], disk: DiskState, totals: Mapping[RecordedSnapshotId, ContentsTotals]
) -> list[SnapshotView]:
    return [_snapshot_view(each, disk, totals.get(each.snapshot_id)) for each in snapshots if is_listed(each)]


def contents_view(listing: SnapshotContents) -> ContentsView:
    contents = listing.contents
    return ContentsView(
        as_of=listing.as_of,
        snapshot_id=str(listing.snapshot_id),
        is_latest=listing.is_latest,
        files=contents.files,
        folders=contents.folders,
        size_bytes=contents.size_bytes,
        is_complete=contents.is_complete,
        is_counted=contents.is_counted,
        entries=[
            ContentsEntry(path=each.path, kind=each.kind.value, size_bytes=each.size, modified_at=each.modified_at)
            for each in contents.entries
        ],
    )


def _disk_state(disk: DiskOverview) -> str:
    if was_never_made(disk):
        return "failed"
    if disk.state.is_deleted:
        return "deleted"
    under_way = disk.latest is not None and not disk.latest.state.is_finished
    if disk.volume_missing_since is not None and not under_way:
        return "missing"
    if disk.state.holder is not None:
        return "in use"
    if under_way:
        return "busy"
    return "in use" if disk.is_attached else "free"


def _restorable_until(state: DiskState, retention: timedelta) -> datetime | None:
    if state.deleted_at is None or state.purge_started_at is not None:
        return None
    return state.deleted_at + retention


def _snapshot_view(snapshot: SnapshotRecord, disk: DiskState, totals: ContentsTotals | None) -> SnapshotView:
    return SnapshotView(
        snapshot_id=str(snapshot.snapshot_id),
        created_at=snapshot.created_at,
        why=snapshot.why.value,
        status=snapshot.status.value,
        usable=snapshot.status.is_usable,
        size_gb=snapshot.size_gb,
        is_current=disk.saved_as == snapshot.snapshot_id,
        files=None if totals is None else totals.files,
        size_bytes=None if totals is None else totals.size_bytes,
        error=snapshot.error,
        lacks=snapshot.lacks,
    )


_OPERATION_NAMESPACE = UUID("5d0f2b86-6a52-4d0f-9f5c-3c1a5a7c9e10")
"""Namespace of operation ids derived from idempotency keys."""
_KEY_PREFIX = "asked "
"""Prefix of users' keys, so that they cannot collide with keys of the system. Keys contain no space."""
_MOST_OPERATIONS = 200
"""How many operations are searched for an id prefix."""

RequestBody = CreateDiskRequest | RestoreDiskRequest | RenameDiskRequest | ResizeDiskRequest | CloneDiskRequest | None
ChooseRequest = Callable[[UserDisks], UserDiskRequest]


@dataclass(frozen=True, slots=True)
class AcceptedOperation:
    operation: OperationView
    replayed: bool
    """True: the answer to an earlier request with this Idempotency-Key; nothing was written."""


@dataclass(frozen=True, slots=True)
class DiskRequests:
    store: DiskOperationStore
    views: DiskViews
    clock: Clock
    settings: DiskSettings = field(default_factory=DiskSettings)
    has_disks: bool = True
    """False: every home is scratch space here."""

    # --- requests --------------------------------------------------------------------------------------------------

    async def create(self, user: User, body: CreateDiskRequest, key: str | None) -> AcceptedOperation:
        if not self.has_disks:
            raise Invalid("this cluster has no disks: /home/dev is scratch space", field="disk_name")
        check_new_disk_name(body.disk_name)
        disk_id = new_disk_id()
        return await self._request_operation(
            user,
            _KeyedRequest("create", body.disk_name, body, key),
            lambda _: CreateDisk(disk_id, body.disk_name, body.size_gb),
        )

    async def delete(self, user: User, name: str, key: str | None) -> AcceptedOperation:
        return await self._request_operation(
            user, _KeyedRequest("delete", name, None, key), lambda facts: DeleteDisk(_living_disk_id(facts, name))
        )

    async def snapshot(self, user: User, name: str, key: str | None) -> AcceptedOperation:
        return await self._request_operation(
            user, _KeyedRequest("snapshot", name, None, key), lambda facts: SnapshotDisk(_living_disk_id(facts, name))
        )

    async def resize(self, user: User, name: str, body: ResizeDiskRequest, key: str | None) -> AcceptedOperation:
        return await self._request_operation(
            user,
            _KeyedRequest("resize", name, body, key),
            lambda facts: ResizeDisk(_living_disk_id(facts, name), body.size_gb),
        )

    async def rename(self, user: User, name: str, body: RenameDiskRequest, key: str | None) -> AcceptedOperation:
        check_new_disk_name(body.new_name, "new_name")
        return await self._request_operation(
            user,
            _KeyedRequest("rename", name, body, key),
            lambda facts: RenameDisk(_living_disk_id(facts, name), body.new_name),
        )

    async def clone(self, user: User, name: str, body: CloneDiskRequest, key: str | None) -> AcceptedOperation:
        check_new_disk_name(body.new_name, "new_name")
        disk_id = new_disk_id()

        def choose(facts: UserDisks) -> CloneDisk:
            source = get_living_disk(facts.disks.values(), name)
            snapshot = None
            if body.snapshot_id is not None:
                snapshot = get_snapshot(facts.snapshots, source, body.snapshot_id).snapshot_id
            return CloneDisk(disk_id, source.disk_id, body.new_name, body.size_gb, snapshot)

        return await self._request_operation(user, _KeyedRequest("clone", name, body, key), choose)

    async def restore(self, user: User, name: str, body: RestoreDiskRequest, key: str | None) -> AcceptedOperation:
        """Without a snapshot: undelete."""
        if body.new_name is not None:
            check_new_disk_name(body.new_name, "new_name")
        if body.snapshot_id is not None:
            for given, text in (("new_name", body.new_name), ("disk_id", body.disk_id)):
                if text is not None:
                    raise Invalid(f"{given} is for undoing a delete; a clone makes a snapshot a new disk", field=given)

        def choose(facts: UserDisks) -> UserDiskRequest:
            disks = facts.disks.values()
            if body.snapshot_id is None:
                return UndeleteDisk(get_deleted_disk(disks, name, body.disk_id).disk_id, body.new_name)
            disk = get_living_or_deleted_disk(disks, name)  # a deleted one is rejected on acceptance
            return RestoreDisk(disk.disk_id, get_snapshot(facts.snapshots, disk, body.snapshot_id).snapshot_id)

        return await self._request_operation(user, _KeyedRequest("restore", name, body, key), choose)

    # --- views -----------------------------------------------------------------------------------------------------

    async def disks(self, user: User, *, deleted: bool) -> list[DiskView]:
        found = await self.views.list_user_disks(user.user_id)
        shown = [
            each for each in found if not each.state.is_deleted or (deleted and each.state.purge_started_at is None)
        ]
        shown += failed_creations(found, self.clock.now())
        shown.sort(key=lambda each: (each.state.name, each.state.created_at))
        return [disk_view(each, self.settings.retention) for each in shown]

    async def details(self, user: User, name: str, *, deleted: bool) -> DiskDetails:
        disk = await self._find_disk(user, name, deleted=deleted)
        disk_id = disk.state.disk_id
        depths = DiskDetailInput(
            snapshots=await self.store.snapshots(disk_id),
            totals=await self.views.load_contents_totals(disk_id),
            history=await self.views.list_disk_events(disk_id),
            listing=await self.views.find_snapshot_contents(disk_id),
        )
        return disk_details(disk, depths, self.settings.retention)

    async def snapshots(self, user: User, name: str, *, deleted: bool) -> list[SnapshotView]:
        disk = (await self._find_disk(user, name, deleted=deleted)).state
        return snapshot_views(
            await self.store.snapshots(disk.disk_id), disk, await self.views.load_contents_totals(disk.disk_id)
        )

    async def contents(self, user: User, name: str, snapshot_id: str | None, *, deleted: bool) -> ContentsView:
        disk = (await self._find_disk(user, name, deleted=deleted)).state
        chosen = None
        if snapshot_id is not None:
            chosen = get_snapshot(await self.store.snapshots(disk.disk_id), disk, snapshot_id).snapshot_id
        listing = await self.views.find_snapshot_contents(disk.disk_id, chosen)
        if listing is None:
            what = f"disk {name!r}" if chosen is None else f"that snapshot of disk {name!r}"
            raise NotFound(f"no listing of {what} yet; one is made with each snapshot")
        return contents_view(listing)

    async def operations(self, user: User, name: str, *, deleted: bool) -> list[OperationView]:
        disk = (await self._find_disk(user, name, deleted=deleted)).state
        return [operation_view(each, disk.name) for each in await self.store.operations(disk.disk_id)]

    async def operation(self, user: User, name: str, operation_id: str) -> OperationView:
        """Also of a deleted disk: deleting is an operation too."""
        check_disk_name(name)
        named = [each.state for each in await self.views.list_user_disks(user.user_id) if each.state.name == name]
        if not named:
            raise NotFound(f"you have no disk {name!r}")
        found = await self._find_operation(operation_id)
        if found is None or found.disk_id not in {disk.disk_id for disk in named}:
            newest = [each for disk in named for each in await self.store.operations(disk.disk_id, _MOST_OPERATIONS)]
            found = get_operation(newest, name, operation_id)
        return operation_view(found, name)

    async def _find_operation(self, text: str) -> Operation | None:
        """By its full id, of any age."""
        try:
            return await self.store.find_operation(OperationId(UUID(text)))
        except ValueError:
            return None

    async def _find_disk(self, user: User, name: str, *, deleted: bool) -> DiskOverview:
        disks = await self.views.list_user_disks(user.user_id)
        for failed in failed_creations(disks, self.clock.now()):
            if failed.state.name == name and not deleted:
                return failed
        found = {each.state.disk_id: each for each in disks}
        states = [each.state for each in disks]
        chosen = get_living_or_deleted_disk(states, name) if deleted else get_living_disk(states, name)
        return found[chosen.disk_id]

    async def _request_operation(
        self, user: User, request: "_KeyedRequest", choose: ChooseRequest
    ) -> AcceptedOperation:
        now = self.clock.now()
        operation_id = request.operation_id(user)
        written = False

        def decide(facts: UserDisks) -> OperationChanges | None:
            nonlocal written
            changes = accept_request(choose(facts), facts, operation_id, now, self.settings)
            written = True
            return changes

        operation = await self.store.accept(user.user_id, decide, now=now, by=user.username, key=request.stored_key)
        assert operation is not None  # a user's request always has something to do
        if operation.operation_id != operation_id:
            raise IdempotencyMismatch("this Idempotency-Key was used for another request; use a new one")
        disk = await self.views.find_disk(operation.disk_id)
        assert disk is not None  # the operation references it
        return AcceptedOperation(operation_view(operation, disk.state.name), replayed=not written)


@dataclass(frozen=True, slots=True)
class _KeyedRequest:
    """A request with its idempotency key."""

    kind: str
    name: str
    body: RequestBody
    key: str | None

    @property
    def stored_key(self) -> str | None:
        return None if self.key is None else _KEY_PREFIX + self.key

    def operation_id(self, user: User) -> OperationId:
        """With a key, derived from user, key and request; else random."""
        if self.key is None:
            return OperationId(uuid4())
        text = json.dumps([user.user_id, asdict(self)], sort_keys=True, ensure_ascii=True)
        return OperationId(uuid5(_OPERATION_NAMESPACE, text))


def _living_disk_id(facts: UserDisks, name: str) -> DiskId:
    return get_living_disk(facts.disks.values(), name).disk_id
