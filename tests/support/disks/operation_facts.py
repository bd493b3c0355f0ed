"""Facts that the next step of an operation is decided by, for tables of tests."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from gpudev.domain.disks.operations import (
    DiskSettings,
    DiskState,
    Operation,
    OperationFacts,
    OperationId,
    OperationKind,
    SnapshotReason,
    SnapshotRecord,
    SnapshotStatus,
    VolumeRecord,
    VolumeStatus,
)
from gpudev.domain.ids import DiskId, ReservationId, UserId
from gpudev.planning.disks.operation_results import CloudState, OperationStep
from gpudev.planning.disks.operation_steps import next_step, plan_cloud_query
from gpudev.ports.cloud import DISK_ID_TAG, OWNER_TAG, Snapshot, SnapshotState, Volume

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
SETTINGS = DiskSettings(default_size_gb=10)
DISK, OTHER = DiskId(UUID(int=1)), DiskId(UUID(int=2))
RESERVATION = ReservationId(UUID(int=9))
EARLIER = OperationId(UUID(int=7))
TAGS = {OWNER_TAG: "ada", "disk-name": "work", DISK_ID_TAG: str(DISK)}


def disk(**changes: Any) -> DiskState:
    made = DiskState(DISK, UserId(1), "ada", "work", NOW, 10, "vol-1", "zone-a", holder=RESERVATION, mark=1)
    return replace(made, **changes)


def operation(kind: OperationKind, **changes: Any) -> Operation:
    made = Operation(OperationId(UUID(int=8)), kind, UserId(1), DISK, NOW, reservation_id=RESERVATION, seq=2, version=1)
    return replace(made, **changes)


def snapshot(number: int = 1, **changes: Any) -> SnapshotRecord:
    made = SnapshotRecord(
        Operation(EARLIER, OperationKind.PUT_AWAY, UserId(1), DISK, NOW).snapshot_token(number),
        DISK,
        EARLIER,
        "vol-1",
        SnapshotReason.END_OF_RESERVATION,
        SnapshotStatus.COMPLETED,
        NOW,
        f"snap-{number}",
        10,
    )
    return replace(made, **changes)


def volume_record(**changes: Any) -> VolumeRecord:
    made = VolumeRecord(uuid4(), DISK, EARLIER, VolumeStatus.KEPT, "zone-a", 10, NOW, volume_id="vol-1")
    return replace(made, **changes)


def volume(volume_id: str = "vol-1", **changes: Any) -> Volume:
    return replace(Volume(volume_id, 10, NOW, "zone-a", (), TAGS), **changes)


def seen_snapshot(record: SnapshotRecord, state: SnapshotState = SnapshotState.COMPLETED) -> Snapshot:
    assert record.cloud_id is not None
    return Snapshot(record.cloud_id, record.volume_id, state, NOW, 10)


SAVED = snapshot(1)


def step_of(
    facts: OperationFacts, *volumes: Volume, snapshots: dict[str, Snapshot | None] | None = None
) -> OperationStep:
    """With everything seen as it is recorded, but for what is given."""
    look = plan_cloud_query(facts)
    there: dict[str, Volume | None] = dict.fromkeys(look.volumes)
    there |= {one.volume_id: one for one in volumes if one.volume_id in look.volumes}
    records = {one.cloud_id: one for one in facts.snapshots}
    states = {SnapshotStatus.PENDING: SnapshotState.PENDING, SnapshotStatus.COMPLETED: SnapshotState.COMPLETED}
    told: dict[str, Snapshot | None] = {
        one: seen_snapshot(records[one], states[records[one].status]) for one in look.snapshots
    }
    return next_step(facts, CloudState(there, told | (snapshots or {})), NOW, SETTINGS)
