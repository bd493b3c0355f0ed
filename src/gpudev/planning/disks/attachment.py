"""A reservation's disk on its way to the dev server and back: what to ask for, what to wait for, what it means.

A dev server starts on the volume of the disk its owner chose, or not at all. How operations on disks are carried out is
no matter of this module.
"""

from dataclasses import dataclass
from datetime import datetime

from gpudev.domain.disks.operations import (
    Changes,
    DiskSettings,
    DiskState,
    Operation,
    OperationFacts,
    OperationId,
    OperationKind,
    OperationState,
)
from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.disk_calls import Finish, Seen
from gpudev.planning.disks.operation_results import conclude
from gpudev.planning.disks.operation_steps import next_step
from gpudev.ports.cloud import Volume
from gpudev.ports.cluster import HomeVolume
from gpudev.ports.disks import HeldDisk
from gpudev.ports.reservations import Change, NewEvent
from gpudev.settings import Timing

STARTING = "starting the dev server"


@dataclass(frozen=True, slots=True)
class Ask:
    """For the operation; `key` makes asking twice the same as once."""

    key: str


@dataclass(frozen=True, slots=True)
class Wait:
    operation: Operation
    step: str
    """What for, in words."""


@dataclass(frozen=True, slots=True)
class Ready:
    volume: HomeVolume


@dataclass(frozen=True, slots=True)
class Failed:
    reason: str


@dataclass(frozen=True, slots=True)
class LetGo:
    """Nothing keeps the reservation from letting go of its disk."""

    told: str | None
    """What became of the disk, in words."""


@dataclass(frozen=True, slots=True)
class Asked:
    """For which operation, by whom, where and when."""

    operation_id: OperationId
    reservation_id: ReservationId
    zone: str | None
    at: datetime


def decide_ready(reservation: Reservation, held: HeldDisk, zone: str | None) -> Ask | Wait | Ready | Failed:
    """`zone`: where the dev server will be. None: wherever the volume is."""
    ready, disk = held.ready, held.disk
    if ready is None and reservation.launched_at is not None and disk.volume_id is not None:
        return Ready(home_on(held.disk))  # it has run on it since before disks were made ready
    if ready is None:
        return _ask_ready(reservation, held)
    if not ready.state.is_over:
        return Wait(ready, _step(ready))
    if ready.state is OperationState.FAILED:
        return Failed(ready.error or "nobody knows why")
    if zone is not None and zone not in (ready.zone, disk.zone):
        return _ask_ready(reservation, held)  # it was placed anew, elsewhere
    if disk.volume_id is None:
        return Failed("it has no volume")
    return Ready(home_on(held.disk))


def ready_at_once(asked: Asked, disk: DiskState, volume: Volume | None, settings: DiskSettings) -> Changes | None:
    """The whole operation, where there is nothing to do but to write it down: the volume is there, free, in place. By
    the same rules as any other. None: there is more to it."""
    if disk.volume_id is None or volume is None or disk.holder != asked.reservation_id:
        return None
    operation = Operation(
        asked.operation_id,
        OperationKind.MAKE_READY,
        disk.user_id,
        disk.disk_id,
        asked.at,
        reservation_id=asked.reservation_id,
        zone=asked.zone,
    )
    facts = OperationFacts(operation, disk)
    step = next_step(facts, Seen({disk.volume_id: volume}), asked.at, settings)
    return conclude(facts, step, asked.at) if isinstance(step, Finish) else None


def decide_away(reservation: Reservation, held: HeldDisk, now: datetime, timing: Timing) -> Ask | Wait | LetGo:
    """For one that is over, and whose dev server is confirmed gone."""
    away = held.away
    if away is None and held.ready is None and reservation.launched_at is None:
        return LetGo(None)  # no dev server ever had it
    if away is None and held.ready is not None and not held.ready.state.is_over:
        # Nobody writes to it: what is left goes on without the reservation, and whoever has the disk next waits for it.
        return LetGo(f"was still being made ready: {_step(held.ready)}")
    if away is None:
        return Ask(f"away {reservation.reservation_id}")
    if away.state is OperationState.DONE:
        return LetGo(away.result)
    if away.state is OperationState.FAILED:
        return LetGo(f"not put away: {away.error}")
    if away.asked_at + timing.put_away_patience <= now:
        # The operation goes on, and whoever has the disk next waits for it.
        return LetGo(f"not put away yet: {_step(away)}")
    return Wait(away, _step(away))


def disk_step(reservation: Reservation, step: str, now: datetime, timing: Timing) -> Change | None:
    """Tell what its disk waits for; None: that was told. From the first time on it has the disk's deadline."""
    text = f"disk {reservation.disk_name!r}: {step}"
    if reservation.step == text:
        return None
    fields: dict[str, object] = {"step": text}
    if reservation.status is Status.PREPARING and reservation.prepare_by is None:
        fields["prepare_by"] = now + timing.disk_deadline
    return _note(reservation, text, fields)


def disk_ready(reservation: Reservation, held: HeldDisk, now: datetime, timing: Timing) -> Change:
    """Tell that its disk is ready, and how: one that was waited for, or that is on a new volume."""
    how = None if held.ready is None else held.ready.result
    fields: dict[str, object] = {"step": STARTING}
    if reservation.status is Status.PREPARING and reservation.prepare_by is not None:
        fields["prepare_by"] = now + timing.preparing_deadline
    return _note(reservation, f"disk {reservation.disk_name!r}: {how or 'ready'}", fields)


def disk_failed(reservation: Reservation, reason: str) -> Change:
    told = f"its disk {reservation.disk_name!r} could not be made ready: {reason}"
    return Change(
        reservation.reservation_id,
        reservation.status,
        reservation.version,
        NewEvent("failed", told),
        to=Status.FAILED,
        fields={"failure_reason": told, "step": None},
    )


def _ask_ready(reservation: Reservation, held: HeldDisk) -> Ask:
    return Ask(f"ready {reservation.reservation_id} {held.readied}")


def home_on(disk: DiskState) -> HomeVolume:
    assert disk.volume_id is not None  # the caller's concern
    return HomeVolume(disk.volume_id, disk.size_gb or 0, disk.zone or "")


def _step(operation: Operation) -> str:
    return f"{operation.step} ({operation.error})" if operation.error is not None else operation.step


def _note(reservation: Reservation, text: str, fields: dict[str, object]) -> Change:
    return Change(
        reservation.reservation_id, reservation.status, reservation.version, NewEvent("step", text), fields=fields
    )
