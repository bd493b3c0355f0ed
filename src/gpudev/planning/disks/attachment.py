"""Attachment of a reservation's disk: what to request, what to wait for, what the result means.

A dev server starts on the volume of the disk its owner chose, or not at all.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from gpudev.domain.disks.operations import (
    DiskSettings,
    DiskState,
    Operation,
    OperationChanges,
    OperationFacts,
    OperationId,
    OperationKind,
    OperationState,
)
from gpudev.domain.ids import ReservationId, short_id
from gpudev.domain.reservations import changes
from gpudev.domain.reservations.changes import Change
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.disks.operation_results import CloudState, FinishOperation, conclude_step
from gpudev.planning.disks.operation_steps import next_step
from gpudev.ports.cloud import Volume
from gpudev.ports.cluster import HomeVolume
from gpudev.ports.disks import DiskAttachment
from gpudev.settings import TimingSettings

STEP_SHOWN_AFTER = timedelta(seconds=1)
"""A disk that another reservation releases is usually free sooner; then there is nothing to record."""
PUT_AWAY_PATIENCE = timedelta(minutes=5)
"""How long an ended reservation waits for its disk's snapshot to begin before it releases its GPUs without it."""


@dataclass(frozen=True, slots=True)
class RequestOperation:
    """Request an operation; `key` makes the request idempotent."""

    key: str


@dataclass(frozen=True, slots=True)
class WaitForOperation:
    operation: Operation
    step: str
    """The step to show, for people."""


@dataclass(frozen=True, slots=True)
class WaitForRelease:
    """The disk's earlier reservation has ended and is not released yet."""

    step: str


@dataclass(frozen=True, slots=True)
class VolumeReady:
    volume: HomeVolume


@dataclass(frozen=True, slots=True)
class AttachmentFailed:
    reason: str


@dataclass(frozen=True, slots=True)
class ReleaseDisk:
    """The reservation may release its disk."""

    outcome: str | None
    """The result for the history. None: nothing to record."""


@dataclass(frozen=True, slots=True)
class AttachmentRequest:
    """The operation, its reservation, zone and time."""

    operation_id: OperationId
    reservation_id: ReservationId
    zone: str | None
    at: datetime


def decide_attach(
    reservation: Reservation, held: DiskAttachment, zone: str | None
) -> RequestOperation | WaitForOperation | WaitForRelease | VolumeReady | AttachmentFailed:
    """`zone`: the dev server's. None: the volume's."""
    ready, disk = held.ready_operation, held.disk
    if disk.holder is not None and disk.holder != reservation.reservation_id:
        return WaitForRelease(f"waits until reservation {short_id(disk.holder)}, which has ended, releases it")
    if ready is None and reservation.launched_at is not None and disk.volume_id is not None:
        return VolumeReady(home_volume_of(held.disk))  # it has run on it since before make_ready existed
    if ready is None:
        return _request_ready(reservation, held)
    if not ready.state.is_finished:
        return WaitForOperation(ready, _step_text(ready))
    if ready.state is OperationState.FAILED:
        return AttachmentFailed(ready.error or "nobody knows why")
    if zone is not None and zone not in (ready.zone, disk.zone):
        return _request_ready(reservation, held)  # it was placed again, in another zone
    if disk.volume_id is None:
        return AttachmentFailed("it has no volume")
    return VolumeReady(home_volume_of(held.disk))


def attach_at_once(
    request: AttachmentRequest, disk: DiskState, volume: Volume | None, settings: DiskSettings
) -> OperationChanges | None:
    """The completed operation, if only records must be written: the volume exists, is free and in the right zone. Uses
    the same rules as any other. None: it needs more steps."""
    if disk.volume_id is None or volume is None or disk.holder != request.reservation_id:
        return None
    operation = Operation(
        request.operation_id,
        OperationKind.MAKE_READY,
        disk.user_id,
        disk.disk_id,
        request.at,
        reservation_id=request.reservation_id,
        zone=request.zone,
    )
    facts = OperationFacts(operation, disk)
    step = next_step(facts, CloudState({disk.volume_id: volume}), request.at, settings)
    return conclude_step(facts, step, request.at) if isinstance(step, FinishOperation) else None


def decide_put_away(
    reservation: Reservation, held: DiskAttachment, now: datetime, timing: TimingSettings
) -> RequestOperation | WaitForOperation | ReleaseDisk:
    """For an ended reservation whose dev server is confirmed gone."""
    away = held.away_operation
    if away is None and held.ready_operation is None and reservation.launched_at is None:
        return ReleaseDisk(None)  # no dev server ever used it
    if away is None and held.ready_operation is not None and not held.ready_operation.state.is_finished:
        # Nothing writes to it: the operation continues without the reservation, and the disk's next user waits for it.
        return ReleaseDisk(f"was still being made ready: {_step_text(held.ready_operation)}")
    if away is None:
        return RequestOperation(f"away {reservation.reservation_id}")
    if away.state is OperationState.DONE:
        return ReleaseDisk(away.result)
    if away.state is OperationState.FAILED:
        return ReleaseDisk(f"not put away: {away.error}")
    if away.asked_at + PUT_AWAY_PATIENCE <= now:
        # The operation continues, and the disk's next user waits for it.
        return ReleaseDisk(f"not put away yet: {_step_text(away)}")
    return WaitForOperation(away, _step_text(away))


def release_wait_change(
    reservation: Reservation, wait: WaitForRelease, now: datetime, timing: TimingSettings
) -> Change | None:
    """Records the wait. None: it is short, or recorded already."""
    if reservation.preparing_at is not None and now - reservation.preparing_at < STEP_SHOWN_AFTER:
        return None
    return disk_step_change(reservation, wait.step, now, timing)


def disk_step_change(reservation: Reservation, step: str, now: datetime, timing: TimingSettings) -> Change | None:
    """Records the disk's step. None: already recorded. The first one sets the disk's deadline."""
    text = f"disk {reservation.disk_name!r}: {step}"
    if reservation.step == text:
        return None
    return changes.disk_step_recorded(reservation, text, now + timing.disk_deadline)


def disk_ready_change(reservation: Reservation, held: DiskAttachment, now: datetime, timing: TimingSettings) -> Change:
    """Records how its disk became ready, if it was waited for or is on a new volume."""
    how = None if held.ready_operation is None else held.ready_operation.result
    return changes.disk_ready(reservation, how or "ready", now + timing.preparing_deadline)


def disk_failed_change(reservation: Reservation, reason: str) -> Change:
    return changes.failed(reservation, f"its disk {reservation.disk_name!r} could not be made ready: {reason}")


def _request_ready(reservation: Reservation, held: DiskAttachment) -> RequestOperation:
    return RequestOperation(f"ready {reservation.reservation_id} {held.ready_count}")


def home_volume_of(disk: DiskState) -> HomeVolume:
    assert disk.volume_id is not None  # checked by the caller
    return HomeVolume(disk.volume_id, disk.size_gb or 0, disk.zone or "")


def _step_text(operation: Operation) -> str:
    return f"{operation.step} ({operation.error})" if operation.error is not None else operation.step
