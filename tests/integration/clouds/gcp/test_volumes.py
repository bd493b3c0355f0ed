"""Disks on GCP: operations that go on, fail or are slow; labels that others change meanwhile; calls given up on."""

import asyncio
from dataclasses import replace
from uuid import uuid4

import pytest

from contracts.cloud_worlds import ours
from gpudev.adapters.gcp.cloud import GcpCloud
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.ports.cloud import OWNER_TAG, TOKEN_TAG, SnapshotState
from support.clouds.gcp_stub import Delay, Fault, GcpStub, Nonsense, Refuse, Request, Reset
from support.clouds.gcp_stub.project import Failure, fingerprint
from support.clouds.gcp_world import HASTY, MILLISECOND, StubWorld, cloud_for

pytestmark = pytest.mark.slow  # importing Google's client takes seconds


@pytest.fixture
def world(stub: GcpStub, cloud: GcpCloud) -> StubWorld:
    return StubWorld(stub, cloud)


async def test_a_persons_name_of_any_kind_comes_back_exactly(world: StubWorld) -> None:
    tags = {OWNER_TAG: "Ada.Lovelace+gpu@example.com", "disk-name": "default", "Team": "Rechner & Söhne"}
    token = str(uuid4())
    made = await world.cloud.ensure_volume(token, size_gb=10, zone=world.zone, tags=tags)
    snapshot = await world.cloud.ensure_snapshot(str(uuid4()), made.volume_id, tags)
    assert made.tags == {**tags, TOKEN_TAG: token}
    assert await world.cloud.volumes() == [made]
    assert tags.items() <= snapshot.tags.items()
    await world.cloud.tag_volume(made.volume_id, {"disk-name": "Renamed.by.Ada"})
    [volume] = await world.cloud.volumes()
    assert volume.tags == {**made.tags, "disk-name": "Renamed.by.Ada"}


async def test_a_volumes_id_is_its_handle_for_the_csi_driver(world: StubWorld) -> None:
    token = str(uuid4())
    assert (await world.new_volume(token)).volume_id == f"projects/lab-1/zones/us-central1-b/disks/gpu-dev-{token}"


async def test_asking_again_in_another_zone_makes_no_second_disk(world: StubWorld) -> None:
    token = str(uuid4())
    first = await world.new_volume(token)
    again = await world.cloud.ensure_volume(token, size_gb=10, zone="us-central1-a", tags=ours())
    assert (again, len(world.stub.project.disks)) == (first, 1)


@pytest.mark.parametrize("slowness", [0, 1, 7])
async def test_a_disk_is_told_when_it_is_ready_however_long_that_takes(world: StubWorld, slowness: int) -> None:
    world.stub.project.slowness = slowness
    volume = await world.new_volume()
    assert world.stub.project.disks[volume.volume_id]["status"] == "READY"
    assert (await world.cloud.grow_volume(volume.volume_id, 20)).size_gb == 20
    await world.cloud.remove_volume(volume.volume_id)
    assert world.stub.project.disks == {}


@pytest.mark.parametrize(("status", "busy"), [("DELETING", "deleting"), ("FAILED", "failed"), ("READY", None)])
async def test_a_disk_that_cannot_be_used_is_told_with_the_reason(
    world: StubWorld, status: str, busy: str | None
) -> None:
    volume = await world.new_volume()
    world.stub.project.disks[volume.volume_id]["status"] = status
    found = await world.cloud.find_volume(volume.volume_id)
    assert found is not None
    assert (busy or "None") in str(found.busy_reason)


async def test_a_disk_that_could_not_be_made_is_not_left_behind(world: StubWorld) -> None:
    token = str(uuid4())
    volume = await world.new_volume(token)
    world.stub.project.disks[volume.volume_id]["status"] = "FAILED"
    with pytest.raises(ClusterError, match="could not create the disk"):
        await world.new_volume(token)
    assert world.stub.project.disks == {}
    assert (await world.new_volume(token)).busy_reason is None, "the next attempt is a new one"


async def test_operations_that_go_on_hold_nobody_else_up(world: StubWorld) -> None:
    world.stub.project.slowness, token = 1_000_000, str(uuid4())
    waiting = [asyncio.create_task(world.new_volume(token)) for _ in range(20)]
    while not world.stub.project.operations:
        await world.cloud.node_groups("")
    await world.cloud.node_groups("")
    assert not any(task.done() for task in waiting)
    _end_operations(world.stub)
    assert len({volume.volume_id for volume in await asyncio.gather(*waiting)}) == 1


async def test_an_operation_that_does_not_end_is_left_and_found_again(stub: GcpStub) -> None:
    cloud = cloud_for(stub, pace=replace(HASTY, operation_patience=50 * MILLISECOND))
    await cloud.start()
    world, token = StubWorld(stub, cloud), str(uuid4())
    stub.project.slowness = 1_000_000
    for _ in range(2):
        with pytest.raises(Unavailable):
            await world.new_volume(token)
    _end_operations(stub)
    assert (await world.new_volume(token)).volume_id in stub.project.disks
    assert len(stub.project.disks) == 1
    await cloud.close()


def _end_operations(stub: GcpStub) -> None:
    for running in stub.project.operations.values():
        running.requests_left = 0


async def test_what_an_operation_refused_may_be_asked_for_again(world: StubWorld) -> None:
    """GCP answers a known request id with what became of it: asking again needs an id of its own."""
    token = str(uuid4())
    world.stub.project.failures.append(Failure("insert", "QUOTA_EXCEEDED", 403, "Quota 'SSD_TOTAL_GB' exceeded."))
    with pytest.raises(ClusterError, match="SSD_TOTAL_GB"):
        await world.new_volume(token)
    assert (await world.new_volume(token)).volume_id in world.stub.project.disks


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", 400, ClusterError),
        ("RESOURCE_NOT_READY", 400, Unavailable),
        ("INTERNAL_ERROR", 500, Unavailable),
    ],
)
async def test_a_removal_that_fails_on_the_way_is_told(
    world: StubWorld, code: str, status: int, error: type[Exception]
) -> None:
    volume = await world.new_volume()
    world.stub.project.failures.append(Failure("delete", code, status))
    with pytest.raises(error):
        await world.cloud.remove_volume(volume.volume_id)
    assert await world.cloud.find_volume(volume.volume_id) is not None


async def test_a_snapshot_that_fails_on_the_way_is_told(world: StubWorld) -> None:
    volume, token = await world.new_volume(), str(uuid4())
    world.stub.project.failures.append(Failure("createSnapshot", "QUOTA_EXCEEDED", 403, "Quota 'SNAPSHOTS' exceeded."))
    with pytest.raises(ClusterError, match="SNAPSHOTS"):
        await world.cloud.ensure_snapshot(token, volume.volume_id, ours())
    begun = await world.cloud.ensure_snapshot(token, volume.volume_id, ours())
    assert begun.state is SnapshotState.PENDING


async def test_a_snapshot_of_another_disk_is_not_given_out_as_this_ones(world: StubWorld) -> None:
    one, other, token = await world.new_volume(), await world.new_volume(), str(uuid4())
    await world.cloud.ensure_snapshot(token, one.volume_id, ours())
    with pytest.raises(ClusterError):
        await world.cloud.ensure_snapshot(token, other.volume_id, ours())


async def test_labels_that_others_change_meanwhile_are_kept(world: StubWorld) -> None:
    volume = await world.new_volume()
    disk = world.stub.project.disks[volume.volume_id]

    def meddle(request: Request) -> bool:
        if request.action == "compute.disks.setLabels" and "theirs" not in disk["labels"]:
            disk["labels"] = disk["labels"] | {"theirs": "kept"}
            disk["labelFingerprint"] = fingerprint(disk["labels"])
        return False

    world.stub.faults.append(Fault(Refuse(500, "never"), meddle))
    await world.cloud.tag_volume(volume.volume_id, {"disk-name": "renamed"})
    assert disk["labels"] == {**volume.tags, "disk-name": "renamed", "theirs": "kept"}


async def test_labels_that_others_change_all_the_time_are_left_for_later(world: StubWorld) -> None:
    volume = await world.new_volume()
    is_labelling = Fault(Refuse(412, "conditionNotMet"), lambda request: request.action == "compute.disks.setLabels")
    world.stub.faults.append(is_labelling)
    with pytest.raises(Unavailable):
        await world.cloud.tag_volume(volume.volume_id, {"disk-name": "renamed"})


async def test_tagging_what_is_tagged_so_already_changes_nothing(world: StubWorld) -> None:
    volume = await world.new_volume()
    before = len(world.stub.called)
    await world.cloud.tag_volume(volume.volume_id, ours())
    assert [request.action for request in world.stub.called[before:]] == ["compute.disks.get"]


async def test_all_attempts_of_one_change_carry_one_request_id(world: StubWorld) -> None:
    world.stub.faults.append(Fault(Reset(after_the_effect=True), lambda request: request.is_change, times=1))
    await world.new_volume()
    ids = [request.query["requestId"] for request in world.stub.called if request.action == "compute.disks.create"]
    assert (len(ids), len(set(ids))) == (2, 1)
    assert len([path for path in world.stub.project.operations if "operation" in path]) == 1


@pytest.mark.parametrize("status", [404, 403, 400, 502])
async def test_a_page_of_some_proxy_is_no_proof_that_a_disk_is_gone(world: StubWorld, status: int) -> None:
    volume = await world.new_volume()
    world.stub.faults.append(Fault(Nonsense(status=status)))
    with pytest.raises(Unavailable):
        await world.cloud.find_volume(volume.volume_id)
    with pytest.raises(Unavailable):
        await world.cloud.remove_volume(volume.volume_id)


async def test_too_many_requests_told_as_forbidden_are_tried_again(world: StubWorld) -> None:
    volume = await world.new_volume()
    world.stub.faults.append(Fault(Refuse(403, "rateLimitExceeded"), times=1))
    assert await world.cloud.find_volume(volume.volume_id) == volume
    world.stub.faults.append(Fault(Refuse(403, "rateLimitExceeded")))
    with pytest.raises(Unavailable):
        await world.cloud.find_volume(volume.volume_id)


async def test_an_answer_that_does_not_come_is_given_up_on(stub: GcpStub) -> None:
    cloud = cloud_for(stub, pace=replace(HASTY, call_timeout=100 * MILLISECOND))
    await cloud.start()
    stub.faults.append(Fault(Delay(0.5)))
    with pytest.raises(Unavailable):
        await cloud.volumes()
    await cloud.close()


async def test_a_creation_and_a_snapshot_broken_off_at_any_request_and_repeated_make_one_of_each(
    world: StubWorld,
) -> None:
    for broken_at in range(1, 100):
        token, snapshot_token = str(uuid4()), str(uuid4())
        task = asyncio.create_task(_make_both(world, token, snapshot_token))
        breaking = _CancelAt(broken_at, task)
        world.stub.faults.append(Fault(Refuse(500, "never"), breaking))
        was_broken = await _is_cancelled(task)
        world.stub.faults.clear()
        await _make_both(world, token, snapshot_token)
        assert (len(world.stub.project.disks), len(world.stub.project.snapshots)) == (broken_at, broken_at)
        if not was_broken:
            assert broken_at > 5
            return
    raise AssertionError("it never ran to its end")


async def _make_both(world: StubWorld, token: str, snapshot_token: str) -> None:
    volume = await world.new_volume(token)
    await world.cloud.ensure_snapshot(snapshot_token, volume.volume_id, ours())


class _CancelAt:
    def __init__(self, request: int, task: asyncio.Task[None]) -> None:
        self._left = request
        self._task = task

    def __call__(self, request: Request) -> bool:
        self._left -= 1
        if self._left == 0:
            self._task.cancel()
        return False


async def _is_cancelled(task: asyncio.Task[None]) -> bool:
    await asyncio.wait([task])
    return task.cancelled()
