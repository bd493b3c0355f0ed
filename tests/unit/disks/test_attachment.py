"""What a reservation's disk needs before its dev server starts, and before it is let go."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from gpudev.domain.disks.operations import (
    DiskSettings,
    DiskState,
    Operation,
    OperationId,
    OperationKind,
    OperationState,
    RecordedSnapshotId,
)
from gpudev.domain.ids import DiskId, ReservationId, UserId
from gpudev.domain.reservations.lifecycle import Status
from gpudev.planning.disks.attachment import (
    AttachmentFailed,
    AttachmentRequest,
    ReleaseDisk,
    RequestOperation,
    VolumeReady,
    WaitForOperation,
    attach_at_once,
    decide_attach,
    decide_put_away,
    disk_step_change,
)
from gpudev.ports.cloud import Volume
from gpudev.ports.cluster import HomeVolume
from gpudev.ports.disks import DiskAttachment
from gpudev.settings import TimingSettings
from support.factories import make_reservation

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
TIMING = TimingSettings()
RID = ReservationId(UUID(int=1))
DISK = DiskState(
    DiskId(UUID(int=2)), UserId(1), "ada", "data", NOW, size_gb=10, volume_id="vol-1", zone="zone-a", holder=RID
)
RESERVATION = make_reservation(
    Status.PREPARING,
    reservation_id=RID,
    version=2,
    gpu_count=1,
    duration=timedelta(hours=1),
    disk_id=DISK.disk_id,
    disk_name="data",
)


def operation(kind: OperationKind, state: OperationState, **changes: object) -> Operation:
    made = Operation(OperationId(UUID(int=3)), kind, UserId(1), DISK.disk_id, NOW, state=state, reservation_id=RID)
    return replace(made, **changes)  # type: ignore[arg-type]


def ready(state: OperationState, **changes: object) -> Operation:
    return operation(OperationKind.MAKE_READY, state, **changes)


def away(state: OperationState, **changes: object) -> Operation:
    return operation(OperationKind.PUT_AWAY, state, **changes)


DONE = ready(OperationState.DONE, zone="zone-a", result="as it was left")
HOME = HomeVolume("vol-1", 10, "zone-a")


@pytest.mark.parametrize(
    ("held", "zone", "expected"),
    [
        (DiskAttachment(DISK), "zone-a", RequestOperation(f"ready {RID} 0")),
        (DiskAttachment(DISK, DONE, 1), "zone-a", VolumeReady(HOME)),
        (DiskAttachment(DISK, DONE, 1), None, VolumeReady(HOME)),
        (DiskAttachment(DISK, ready(OperationState.FAILED, error="no room"), 1), "zone-a", AttachmentFailed("no room")),
    ],
    ids=["never asked for", "done", "done, wherever", "failed"],
)
def test_what_follows_from_what_was_asked_for(held: DiskAttachment, zone: str | None, expected: object) -> None:
    assert decide_attach(RESERVATION, held, zone) == expected


def test_what_is_under_way_is_waited_for_whatever_the_zone_and_told_with_its_error() -> None:
    running = ready(OperationState.RUNNING, step="making a volume", error="no answer", zone="zone-a")
    told = "making a volume (no answer)"
    assert decide_attach(RESERVATION, DiskAttachment(DISK, running, 1), "zone-b") == WaitForOperation(running, told)


def test_one_that_was_placed_anew_in_another_zone_asks_again_and_back_again() -> None:
    assert decide_attach(RESERVATION, DiskAttachment(DISK, DONE, 1), "zone-b") == RequestOperation(f"ready {RID} 1")
    moved = replace(DISK, zone="zone-b")
    there = replace(DONE, zone="zone-b")
    assert isinstance(decide_attach(RESERVATION, DiskAttachment(moved, there, 2), "zone-b"), VolumeReady)
    assert decide_attach(RESERVATION, DiskAttachment(moved, there, 2), "zone-a") == RequestOperation(f"ready {RID} 2")


def test_a_cloud_that_puts_it_elsewhere_is_not_asked_without_end() -> None:
    elsewhere = replace(DISK, zone="zone-x")
    assert isinstance(decide_attach(RESERVATION, DiskAttachment(elsewhere, DONE, 1), "zone-a"), VolumeReady)


def test_one_that_has_run_on_it_since_before_needs_nothing() -> None:
    launched = replace(RESERVATION, status=Status.ACTIVE, launched_at=NOW)
    assert decide_attach(launched, DiskAttachment(DISK), None) == VolumeReady(HOME)
    assert isinstance(decide_attach(launched, DiskAttachment(replace(DISK, volume_id=None)), None), RequestOperation)


@pytest.mark.parametrize(
    ("held", "later", "expected"),
    [
        (DiskAttachment(DISK), 0, ReleaseDisk(None)),
        (DiskAttachment(DISK, DONE, 1), 0, RequestOperation(f"away {RID}")),
        (DiskAttachment(DISK, DONE, 1, away(OperationState.DONE, result="snapshot 1")), 0, ReleaseDisk("snapshot 1")),
        (DiskAttachment(DISK, DONE, 1, away(OperationState.FAILED, error="no")), 0, ReleaseDisk("not put away: no")),
        (DiskAttachment(DISK, DONE, 1, away(OperationState.RUNNING, step="s")), 5, ReleaseDisk("not put away yet: s")),
    ],
    ids=["never had", "had", "put away", "failed", "patience is over"],
)
def test_when_it_is_let_go(held: DiskAttachment, later: int, expected: object) -> None:
    assert decide_put_away(RESERVATION, held, NOW + timedelta(minutes=later), TIMING) == expected


def test_it_is_not_let_go_while_there_is_patience() -> None:
    running = away(OperationState.RUNNING, step="still attached")
    held = DiskAttachment(DISK, DONE, 1, running)
    assert decide_put_away(RESERVATION, held, NOW + timedelta(minutes=4), TIMING) == WaitForOperation(
        running, "still attached"
    )


def test_one_that_ran_before_disks_were_made_ready_is_put_away_too() -> None:
    launched = replace(RESERVATION, status=Status.EXPIRED, launched_at=NOW)
    assert decide_put_away(launched, DiskAttachment(DISK), NOW, TIMING) == RequestOperation(f"away {RID}")


def test_a_step_is_told_once_and_gives_the_disks_deadline_once() -> None:
    first = disk_step_change(RESERVATION, "restoring", NOW, TIMING)
    assert first is not None
    assert first.fields == {"step": "disk 'data': restoring", "prepare_by": NOW + TIMING.disk_deadline}
    told = replace(RESERVATION, step="disk 'data': restoring", prepare_by=NOW + TIMING.disk_deadline)
    assert disk_step_change(told, "restoring", NOW, TIMING) is None
    second = disk_step_change(told, "attaching", NOW + timedelta(minutes=50), TIMING)
    assert second is not None
    assert "prepare_by" not in second.fields


VOLUME = Volume("vol-1", 10, NOW, "zone-a")
ASKED = AttachmentRequest(OperationId(UUID(int=9)), RID, "zone-a", NOW)


def test_a_disk_as_it_was_left_is_ready_at_once_and_saved_nowhere_from_then_on() -> None:
    saved = replace(DISK, saved_as=RecordedSnapshotId(UUID(int=4)))
    changes = attach_at_once(ASKED, saved, VOLUME, DiskSettings())
    assert changes is not None
    assert changes.operation.state is OperationState.DONE
    assert changes.disk is not None
    assert changes.disk.saved_as is None


@pytest.mark.parametrize(
    ("disk", "volume", "asked"),
    [
        (DISK, None, ASKED),
        (replace(DISK, volume_id=None), None, ASKED),
        (DISK, replace(VOLUME, attached_to=("i-1",)), ASKED),
        (DISK, replace(VOLUME, busy_reason="being copied"), ASKED),
        (DISK, VOLUME, replace(ASKED, zone="zone-b")),
        (replace(DISK, holder=ReservationId(UUID(int=7))), VOLUME, ASKED),
        (replace(DISK, is_deleted=True), VOLUME, ASKED),
    ],
    ids=["not to be seen", "without a volume", "attached", "busy", "elsewhere", "another's", "deleted"],
)
def test_anything_else_takes_an_operation(disk: DiskState, volume: Volume | None, asked: AttachmentRequest) -> None:
    assert attach_at_once(asked, disk, volume, DiskSettings()) is None
