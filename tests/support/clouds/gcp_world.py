"""The stub as the world of the cloud contracts."""

import itertools
from collections.abc import Mapping
from datetime import datetime, timedelta

from contracts.cloud_worlds import LONG_AGO, Listing
from gpudev.adapters.gcp.client import CallPace
from gpudev.adapters.gcp.cloud import GcpCloud
from gpudev.adapters.gcp.labels import labels_from_tags
from gpudev.ports.cloud import SnapshotState
from gpudev.settings import GcpSettings
from support.clouds.gcp_stub import GcpStub
from support.clouds.gcp_stub.faults import SERVER_ERROR
from support.clouds.stub_world import StubCloudWorld

MILLISECOND = timedelta(milliseconds=1)
HASTY = CallPace(
    attempts=2,
    call_timeout=timedelta(seconds=5),
    operation_patience=timedelta(seconds=5),
    first_wait=2 * MILLISECOND,
    longest_wait=5 * MILLISECOND,
    poll_every=MILLISECOND,
)
"""Gives up soon, so that tests of what lasts end soon."""
PERMISSIONS = {
    Listing.GROUPS: "compute.instanceGroupManagers.list",
    Listing.VOLUMES: "compute.disks.list",
    Listing.SNAPSHOTS: "compute.snapshots.list",
}
_STATES = {SnapshotState.PENDING: "UPLOADING", SnapshotState.COMPLETED: "READY", SnapshotState.ERROR: "FAILED"}


def cloud_for(stub: GcpStub, region: str = "", pace: CallPace = HASTY) -> GcpCloud:
    return GcpCloud(GcpSettings(project=stub.project.name, region=region), pace, stub.address)


class StubWorld(StubCloudWorld):
    zone = "us-central1-b"
    permissions = PERMISSIONS
    server_error = SERVER_ERROR

    def __init__(self, stub: GcpStub, cloud: GcpCloud) -> None:
        self.stub = stub
        self.cloud = cloud
        self._numbers = itertools.count()

    async def give_volume(self, *, tags: Mapping[str, str], created_at: datetime = LONG_AGO, size_gb: int = 10) -> str:
        """In all zones, one after the other."""
        number, zones = next(self._numbers), self.stub.project.zones
        return self.stub.project.put_disk(
            zones[number % len(zones)],
            f"disk-{number:04}",
            size_gb=size_gb,
            labels=labels_from_tags(tags),
            created_at=created_at,
        )

    async def give_snapshot(
        self,
        volume_id: str,
        *,
        tags: Mapping[str, str],
        created_at: datetime = LONG_AGO,
        state: SnapshotState = SnapshotState.COMPLETED,
    ) -> str:
        return self.stub.project.put_snapshot(
            f"snapshot-{next(self._numbers):04}",
            self.stub.project.disks[volume_id],
            labels=labels_from_tags(tags),
            created_at=created_at,
            status=_STATES[state],
        )

    async def attach(self, volume_id: str) -> str:
        disk = self.stub.project.disks[volume_id]
        disk["users"] = [disk["zone"] + "/instances/gpu-node-7"]
        return "gpu-node-7"

    async def detach(self, volume_id: str) -> None:
        del self.stub.project.disks[volume_id]["users"]

    async def destroy_volume(self, volume_id: str) -> None:
        del self.stub.project.disks[volume_id]

    async def complete(self, snapshot_id: str) -> None:
        self.stub.project.complete(snapshot_id)

    async def give_group(self, name: str, *, desired: int, in_service: int, starting: int = 0) -> None:
        """Zonal ones and regional ones, by turns."""
        scope = ("zones/us-central1-a", "regions/us-central1")[next(self._numbers) % 2]
        self.stub.project.put_group(scope, name, target=desired, actions={"none": in_service, "creating": starting})

    # --- misbehaving -------------------------------------------------------------------------------------------------

    def pages_of(self, count: int) -> None:
        self.stub.listings.largest_page = count

    def hide_the_new(self, requests: int) -> None:
        self.stub.project.hide = requests
