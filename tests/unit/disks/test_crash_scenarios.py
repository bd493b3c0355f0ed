"""Lives of disks, every one of them told again with the process dying before and after each single call."""

import pytest

from gpudev.domain.disks.operations import OperationKind, OperationState, VolumeStatus
from support.disks.memory_cloud import Crash
from support.disks.scenarios import LIVES, Life, live, move_between_zones


@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.__name__)
def test_a_life_without_a_crash_keeps_every_promise(life: Life) -> None:
    world = live(life)
    assert {one.state for one in world.store.all_operations.values()} == {OperationState.DONE}


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.__name__)
def test_a_life_with_a_crash_at_any_call_keeps_every_promise(life: Life, after: bool) -> None:
    calls = live(life).trouble.calls
    assert calls > 5
    for crash_at in range(1, calls + 1):
        try:
            world = live(life, crash_at=crash_at, after=after)
        except (AssertionError, Crash) as error:
            raise AssertionError(f"with a crash {'after' if after else 'before'} call {crash_at}: {error}") from error
        assert world.crashes == 1


def test_old_volumes_are_gone_once_another_took_their_place() -> None:
    world = live(move_between_zones)
    statuses = [one.status for one in world.store.all_volumes.values()]
    assert statuses == [VolumeStatus.REMOVED, VolumeStatus.REMOVED, VolumeStatus.KEPT]
    kinds = {one.kind for one in world.store.all_operations.values()}
    assert kinds == {OperationKind.CREATE, OperationKind.MAKE_READY, OperationKind.PUT_AWAY}
