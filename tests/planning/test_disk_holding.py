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
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.disks.attachment import (
    Ask,
    Asked,
    Failed,
    LetGo,
    Ready,
    Wait,
    decide_away,
    decide_ready,
    disk_step,
    ready_at_once,
)
from gpudev.ports.cloud import Volume
from gpudev.ports.cluster import HomeVolume
from gpudev.ports.disks import HeldDisk
from gpudev.settings import Timing

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
TIMING = Timing()
RID = ReservationId(UUID(int=1))
DISK = DiskState(
    DiskId(UUID(int=2)), UserId(1), "ada", "data", NOW, size_gb=10, volume_id="vol-1", zone="zone-a", holder=RID
)
RESERVATION = Reservation(
    RID, 1, UserId(1), "ada", Status.PREPARING, 2, "h100", 1, 1, timedelta(hours=1), NOW,
    disk_id=DISK.disk_id, disk_name="data",
)  # fmt: skip


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
        (HeldDisk(DISK), "zone-a", Ask(f"ready {RID} 0")),
        (HeldDisk(DISK, DONE, 1), "zone-a", Ready(HOME)),
        (HeldDisk(DISK, DONE, 1), None, Ready(HOME)),
        (HeldDisk(DISK, ready(OperationState.FAILED, error="no room"), 1), "zone-a", Failed("no room")),
    ],
    ids=["never asked for", "done", "done, wherever", "failed"],
)
def test_what_follows_from_what_was_asked_for(held: HeldDisk, zone: str | None, expected: object) -> None:
    assert decide_ready(RESERVATION, held, zone) == expected


def test_what_is_under_way_is_waited_for_whatever_the_zone_and_told_with_its_error() -> None:
    running = ready(OperationState.RUNNING, step="making a volume", error="no answer", zone="zone-a")
    told = "making a volume (no answer)"
    assert decide_ready(RESERVATION, HeldDisk(DISK, running, 1), "zone-b") == Wait(running, told)


def test_one_that_was_placed_anew_in_another_zone_asks_again_and_back_again() -> None:
    assert decide_ready(RESERVATION, HeldDisk(DISK, DONE, 1), "zone-b") == Ask(f"ready {RID} 1")
    moved = replace(DISK, zone="zone-b")
    there = replace(DONE, zone="zone-b")
    assert isinstance(decide_ready(RESERVATION, HeldDisk(moved, there, 2), "zone-b"), Ready)
    assert decide_ready(RESERVATION, HeldDisk(moved, there, 2), "zone-a") == Ask(f"ready {RID} 2")


def test_a_cloud_that_puts_it_elsewhere_is_not_asked_without_end() -> None:
    elsewhere = replace(DISK, zone="zone-x")
    assert isinstance(decide_ready(RESERVATION, HeldDisk(elsewhere, DONE, 1), "zone-a"), Ready)


def test_one_that_has_run_on_it_since_before_needs_nothing() -> None:
    launched = replace(RESERVATION, status=Status.ACTIVE, launched_at=NOW)
    assert decide_ready(launched, HeldDisk(DISK), None) == Ready(HOME)
    assert isinstance(decide_ready(launched, HeldDisk(replace(DISK, volume_id=None)), None), Ask)


@pytest.mark.parametrize(
    ("held", "later", "expected"),
    [
        (HeldDisk(DISK), 0, LetGo(None)),
        (HeldDisk(DISK, DONE, 1), 0, Ask(f"away {RID}")),
        (HeldDisk(DISK, DONE, 1, away(OperationState.DONE, result="snapshot 1")), 0, LetGo("snapshot 1")),
        (HeldDisk(DISK, DONE, 1, away(OperationState.FAILED, error="no")), 0, LetGo("not put away: no")),
        (HeldDisk(DISK, DONE, 1, away(OperationState.RUNNING, step="s")), 5, LetGo("not put away yet: s")),
    ],
    ids=["never had", "had", "put away", "failed", "patience is over"],
)
def test_when_it_is_let_go(held: HeldDisk, later: int, expected: object) -> None:
    assert decide_away(RESERVATION, held, NOW + timedelta(minutes=later), TIMING) == expected


def test_it_is_not_let_go_while_there_is_patience() -> None:
    running = away(OperationState.RUNNING, step="still attached")
    held = HeldDisk(DISK, DONE, 1, running)
    assert decide_away(RESERVATION, held, NOW + timedelta(minutes=4), TIMING) == Wait(running, "still attached")


def test_one_that_ran_before_disks_were_made_ready_is_put_away_too() -> None:
    launched = replace(RESERVATION, status=Status.EXPIRED, launched_at=NOW)
    assert decide_away(launched, HeldDisk(DISK), NOW, TIMING) == Ask(f"away {RID}")


def test_a_step_is_told_once_and_gives_the_disks_deadline_once() -> None:
    first = disk_step(RESERVATION, "restoring", NOW, TIMING)
    assert first is not None
    assert first.fields == {"step": "disk 'data': restoring", "prepare_by": NOW + TIMING.disk_deadline}
    told = replace(RESERVATION, step="disk 'data': restoring", prepare_by=NOW + TIMING.disk_deadline)
    assert disk_step(told, "restoring", NOW, TIMING) is None
    second = disk_step(told, "attaching", NOW + timedelta(minutes=50), TIMING)
    assert second is not None
    assert "prepare_by" not in second.fields


VOLUME = Volume("vol-1", 10, NOW, "zone-a")
ASKED = Asked(OperationId(UUID(int=9)), RID, "zone-a", NOW)


def test_a_disk_as_it_was_left_is_ready_at_once_and_saved_nowhere_from_then_on() -> None:
    saved = replace(DISK, saved_as=RecordedSnapshotId(UUID(int=4)))
    changes = ready_at_once(ASKED, saved, VOLUME, DiskSettings())
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
        (DISK, replace(VOLUME, busy="being copied"), ASKED),
        (DISK, VOLUME, replace(ASKED, zone="zone-b")),
        (replace(DISK, holder=ReservationId(UUID(int=7))), VOLUME, ASKED),
        (replace(DISK, is_deleted=True), VOLUME, ASKED),
    ],
    ids=["not to be seen", "without a volume", "attached", "busy", "elsewhere", "another's", "deleted"],
)
def test_anything_else_takes_an_operation(disk: DiskState, volume: Volume | None, asked: Asked) -> None:
    assert ready_at_once(asked, disk, volume, DiskSettings()) is None
