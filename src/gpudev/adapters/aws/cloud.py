"""AWS implementation of the Cloud port.

Region, credentials and endpoint are found as in every AWS program (AWS_REGION, AWS_ENDPOINT_URL, the pod's role …).
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from gpudev.adapters.aws.client import CALL_LIMITS, AwsClient, AwsRejected, CallLimits
from gpudev.adapters.aws.parsing import parse_node_group, parse_snapshot, parse_volume
from gpudev.adapters.aws.permissions import Action
from gpudev.adapters.aws.volumes import AwsVolumes
from gpudev.adapters.environment_tag import EnvironmentTag
from gpudev.domain.errors import NotFound, Unavailable
from gpudev.ports.cloud import OWNER_TAG, MachineRefresh, NodeGroup, RefreshState, Snapshot, Volume
from gpudev.settings import AwsSettings

# Machine refresh of Auto Scaling groups: AWS calls it an instance refresh.


_IN_PROGRESS_CODE = "InstanceRefreshInProgress"
_VALIDATION_CODE = "ValidationError"
_MAX_RECORDS = 1
_DONE_STATUSES = frozenset({"Successful"})
_FAILED_STATUSES = frozenset({"Failed", "Cancelled", "RollbackFailed", "RollbackSuccessful"})


class AwsNodeGroups:
    def __init__(self, client: AwsClient) -> None:
        self._client = client

    async def machines(self, group: str) -> Sequence[str]:
        response = await self._client.call(Action.DESCRIBE_GROUPS, {"AutoScalingGroupNames": [group]})
        for fields in response["AutoScalingGroups"]:
            if fields["AutoScalingGroupName"] == group:
                return sorted(instance["InstanceId"] for instance in fields.get("Instances", ()))
        raise NotFound(f"no Auto Scaling group named {group!r} in this region")

    async def last_refresh(self, group: str) -> MachineRefresh | None:
        try:
            response = await self._client.call(
                Action.DESCRIBE_REFRESHES, {"AutoScalingGroupName": group, "MaxRecords": _MAX_RECORDS}
            )
        except AwsRejected as error:
            if error.aws_code == _VALIDATION_CODE:
                await self.machines(group)  # raises NotFound if there is no such group
            raise
        # The newest comes first, whether it is running or finished.
        return next(map(_parse_refresh, response["InstanceRefreshes"]), None)

    async def ensure_refresh(self, group: str, *, keep_percent: int, warmup_seconds: int) -> MachineRefresh:
        preferences = {"MinHealthyPercentage": keep_percent, "InstanceWarmup": warmup_seconds}
        try:
            # A repeated request finds the refresh in progress: no machine is replaced twice.
            response = await self._client.call(
                Action.START_REFRESH, {"AutoScalingGroupName": group, "Preferences": preferences}
            )
        except AwsRejected as error:
            if error.aws_code != _IN_PROGRESS_CODE:
                raise
            last = await self.last_refresh(group)
            if last is None or last.state is not RefreshState.RUNNING:  # it ended between the two calls
                raise Unavailable(f"an earlier refresh of {group} has just ended: try again") from error
            return last
        return MachineRefresh(response["InstanceRefreshId"], RefreshState.RUNNING, 0, "Pending")


def _parse_refresh(fields: Mapping[str, Any]) -> MachineRefresh:
    status = fields["Status"]
    state = RefreshState.RUNNING
    if status in _DONE_STATUSES:
        state = RefreshState.DONE
    elif status in _FAILED_STATUSES:
        state = RefreshState.FAILED
    reason = fields.get("StatusReason")
    return MachineRefresh(
        fields["InstanceRefreshId"],
        state,
        fields.get("PercentageComplete", 0),
        f"{status}: {reason}" if reason else status,
    )


# Listings, and the whole cloud.


_PAGE_SIZE = 1000
_GROUP_PAGE_SIZE = 100
"""The most that AWS returns in one page."""


class AwsInventory:
    """Node groups, volumes and snapshots of our account. A listing is complete or it raises."""

    def __init__(self, client: AwsClient, environment_tag: EnvironmentTag) -> None:
        self._client = client
        self._environment_tag = environment_tag
        self._volume_listing: asyncio.Future[frozenset[str] | None] | None = None
        """Volume ids of the latest listing, finished or in progress: their snapshots are ours even without a tag.
        Used once, because later there may be other volumes. Result None: that listing failed."""

    async def node_groups(self, prefix: str) -> list[NodeGroup]:
        # Auto Scaling filters by full names and tags only, so all groups are listed.
        found: dict[str, NodeGroup] = {}
        parameters = {"MaxRecords": _GROUP_PAGE_SIZE}
        async for page in self._client.list_pages(Action.DESCRIBE_GROUPS, "AutoScalingGroups", parameters):
            for group in map(parse_node_group, page):
                if group.name.startswith(prefix):
                    found[group.name] = group
        return sorted(found.values(), key=lambda group: group.name)

    async def volumes(self) -> list[Volume]:
        self._volume_listing = listing = asyncio.get_running_loop().create_future()
        found: dict[str, Volume] | None = None
        try:
            found = await self._list_volumes_by_id()
            volumes = sorted(found.values(), key=lambda volume: (volume.created_at, volume.volume_id))
            return self._environment_tag.select(volumes)
        finally:
            listing.set_result(None if found is None else frozenset(found))

    async def _list_volumes_by_id(self) -> dict[str, Volume]:
        # By id: a listing that is read during changes may contain a volume twice.
        found: dict[str, Volume] = {}
        parameters = {"Filters": [{"Name": "tag-key", "Values": [OWNER_TAG]}], "MaxResults": _PAGE_SIZE}
        async for page in self._client.list_pages(Action.DESCRIBE_VOLUMES, "Volumes", parameters):
            found.update({volume.volume_id: volume for volume in map(parse_volume, page) if volume is not None})
        return found

    async def snapshots(self) -> list[Snapshot]:
        """Lists the whole account: listing by volume would take one request per 200 volumes."""
        listing, self._volume_listing = self._volume_listing, None
        found: dict[str, Snapshot] = {}
        parameters = {"OwnerIds": ["self"], "MaxResults": _PAGE_SIZE}
        async for page in self._client.list_pages(Action.DESCRIBE_SNAPSHOTS, "Snapshots", parameters):
            found.update({snapshot.snapshot_id: snapshot for snapshot in map(parse_snapshot, page)})
        volume_ids = None if listing is None else await listing
        if volume_ids is None:
            volume_ids = frozenset(await self._list_volumes_by_id())
        ours = [
            snapshot for snapshot in found.values() if OWNER_TAG in snapshot.tags or snapshot.volume_id in volume_ids
        ]
        ours.sort(key=lambda snapshot: (snapshot.created_at, snapshot.snapshot_id))
        return self._environment_tag.select(ours)


class AwsCloud(AwsInventory, AwsVolumes, AwsNodeGroups):
    def __init__(
        self, settings: AwsSettings, limits: CallLimits = CALL_LIMITS, *, environment: str | None = None
    ) -> None:
        client, environment_tag = AwsClient(settings, limits), EnvironmentTag(environment)
        AwsInventory.__init__(self, client, environment_tag)
        AwsVolumes.__init__(self, client, environment_tag)
        AwsNodeGroups.__init__(self, client)

    @property
    def name(self) -> str:
        return "aws"

    async def start(self) -> None:
        await self._client.start()

    async def close(self) -> None:
        await self._client.close()
