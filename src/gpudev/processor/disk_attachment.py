"""Disk attachment: makes a disk ready before the launch and puts it away after the teardown.

It waits only briefly: a longer operation continues in the disk worker, and the caller is woken when it changes.
"""

import asyncio
from typing import assert_never
from uuid import uuid4

from gpudev.domain.disks.contents import Contents
from gpudev.domain.disks.operations import MakeReady, OperationId, PutAway
from gpudev.domain.errors import ClusterError, Conflict, GpuDevError, NotFound, Stale, Unavailable
from gpudev.domain.ids import DiskId
from gpudev.domain.reservations.changes import Change
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.disks.attachment import (
    AttachmentFailed,
    AttachmentRequest,
    ReleaseDisk,
    RequestOperation,
    VolumeReady,
    WaitForOperation,
    WaitForRelease,
    attach_at_once,
    decide_attach,
    decide_put_away,
    disk_ready_change,
    disk_step_change,
    home_volume_of,
    release_wait_change,
)
from gpudev.ports.cluster import HomeVolume
from gpudev.ports.disks import AttachmentStore, ContentsStore, DiskAttachment
from gpudev.ports.reservations import ReservationStore
from gpudev.processor.disk_worker import DiskWorker
from gpudev.settings import TimingSettings
from gpudev.workflows.disks.operations import DiskOperations

_READY_WITHIN_S = 0.3
"""How long to wait before the disk's step is recorded."""
_VISIBLE_WITHIN_S = 1.0
"""A cloud usually answers sooner. If not, the operation reads the volume itself."""
_AWAY_WITHIN_S = 5.0


class AttachmentPending(GpuDevError):
    """Still in progress; the caller is woken when it changes."""

    code = "still_working"


class DiskFailed(GpuDevError):
    """The disk cannot be made ready; the message is the reason."""

    code = "disk_failed"


class DiskAttacher:
    def __init__(
        self,
        operations: DiskOperations,
        worker: DiskWorker,
        *,
        attachments: AttachmentStore,
        contents: ContentsStore,
        reservations: ReservationStore,
        timing: TimingSettings,
    ) -> None:
        self._operations = operations
        self._worker = worker
        self._attachments = attachments
        self._contents = contents
        self._reservations = reservations
        self._clock = operations.clock
        self._timing = timing

    async def make_ready(
        self, reservation: Reservation, disk_id: DiskId, zone: str | None
    ) -> tuple[Reservation, HomeVolume]:
        """The volume, and the reservation after its changes. Raises AttachmentPending and DiskFailed."""
        held = await self._get_attachment(reservation, disk_id)
        before = held.disk.volume_id
        decision = decide_attach(reservation, held, zone)
        if isinstance(decision, RequestOperation) and await self._ready_at_once(reservation, held, zone, decision.key):
            return reservation, home_volume_of(held.disk)
        if isinstance(decision, RequestOperation | WaitForOperation):
            request = MakeReady(disk_id, reservation.reservation_id, zone)
            held = await self._advance(reservation, decision, request, _READY_WITHIN_S)
            decision = decide_attach(reservation, held, zone)
        match decision:
            case VolumeReady():
                self._stop_awaiting(held)
                if reservation.prepare_by is not None or held.disk.volume_id != before:
                    change = disk_ready_change(reservation, held, self._clock.now(), self._timing)
                    reservation = await self._reservations.apply_change(change, now=self._clock.now())
                return reservation, decision.volume
            case AttachmentFailed():
                self._stop_awaiting(held)
                raise DiskFailed(decision.reason)
            case WaitForOperation():
                now = self._clock.now()
                await self._record(disk_step_change(reservation, decision.step, now, self._timing))
                raise AttachmentPending(decision.step)
            case WaitForRelease():
                await self._record(release_wait_change(reservation, decision, self._clock.now(), self._timing))
                raise AttachmentPending(decision.step)
            case RequestOperation():
                raise AttachmentPending("requested again")
            case _:
                assert_never(decision)

    async def _ready_at_once(self, reservation: Reservation, held: DiskAttachment, zone: str | None, key: str) -> bool:
        """The fast path: most disks are as they were left. One read, one write, and the dev server starts."""
        if held.disk.volume_id is None or reservation.prepare_by is not None:
            return False
        try:
            async with asyncio.timeout(_VISIBLE_WITHIN_S):
                volume = await self._operations.cloud.find_volume(held.disk.volume_id)
        except (TimeoutError, Unavailable, ClusterError):  # the operation finds the cause
            return False
        request = AttachmentRequest(OperationId(uuid4()), reservation.reservation_id, zone, self._clock.now())
        changes = attach_at_once(request, held.disk, volume, self._operations.settings)
        if changes is None:
            return False
        self._worker.expect_completed(request.operation_id)
        return await self._attachments.write_finished_operation(changes, key, now=request.at, by="processor")

    async def save_reported_contents(self, reservation: Reservation, disk_id: DiskId, contents: Contents) -> None:
        """The disk's contents as its dev server reports them, before the teardown."""
        now = self._clock.now()
        await self._contents.save_reported_contents(reservation.reservation_id, disk_id, contents, now=now)

    async def put_away(self, reservation: Reservation, disk_id: DiskId) -> str | None:
        """The result for the history. Raises AttachmentPending."""
        held = await self._get_attachment(reservation, disk_id)
        decision = decide_put_away(reservation, held, self._clock.now(), self._timing)
        if isinstance(decision, RequestOperation | WaitForOperation):
            request = PutAway(disk_id, reservation.reservation_id)
            held = await self._advance(reservation, decision, request, _AWAY_WITHIN_S)
            decision = decide_put_away(reservation, held, self._clock.now(), self._timing)
        match decision:
            case ReleaseDisk():
                self._stop_awaiting(held)
                return decision.outcome
            case WaitForOperation():
                raise AttachmentPending(decision.step)
            case RequestOperation():
                raise AttachmentPending("requested again")
            case _:
                assert_never(decision)

    async def _advance(
        self,
        reservation: Reservation,
        decision: RequestOperation | WaitForOperation,
        request: MakeReady | PutAway,
        within_s: float,
    ) -> DiskAttachment:
        match decision:
            case RequestOperation():
                operation_id = await self._request_operation(reservation, request, decision.key)
            case WaitForOperation():
                operation_id = decision.operation.operation_id
            case _:
                assert_never(decision)
        await self._worker.advance(operation_id, within_s)
        return await self._get_attachment(reservation, request.disk_id)

    async def _request_operation(self, reservation: Reservation, request: MakeReady | PutAway, key: str) -> OperationId:
        try:
            operation = await self._operations.request_operation(reservation.user_id, request, key=key)
        except Stale:
            raise
        except (NotFound, Conflict) as error:  # the disk is no longer the reservation's, or does not exist
            raise DiskFailed(str(error)) from error
        assert operation is not None  # always set for a request with a key
        return operation.operation_id

    async def _record(self, change: Change | None) -> None:
        if change is not None:
            await self._reservations.apply_change(change, now=self._clock.now())

    async def _get_attachment(self, reservation: Reservation, disk_id: DiskId) -> DiskAttachment:
        held = await self._attachments.find_attachment(disk_id, reservation.reservation_id)
        if held is None:
            raise NotFound(f"no disk named {reservation.disk_name!r} any more")
        return held

    def _stop_awaiting(self, held: DiskAttachment) -> None:
        for operation in (held.ready_operation, held.away_operation):
            if operation is not None:
                self._worker.stop_awaiting(operation.operation_id)
