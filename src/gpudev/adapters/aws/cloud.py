"""The Cloud port on AWS. Region, credentials and address are found as every AWS program finds them (AWS_REGION,
AWS_ENDPOINT_URL, the pod's role …).
"""

import asyncio

from gpudev.adapters.aws.client import CALL_LIMITS, AwsClient, CallLimits
from gpudev.adapters.aws.instance_refresh import AwsNodeGroups
from gpudev.adapters.aws.parsing import parse_node_group, parse_snapshot, parse_volume
from gpudev.adapters.aws.permissions import Action
from gpudev.adapters.aws.volumes import AwsVolumes
from gpudev.adapters.environment_tag import EnvironmentTag
from gpudev.ports.cloud import OWNER_TAG, NodeGroup, Snapshot, Volume
from gpudev.settings import AwsSettings

# What can be seen of our account: groups of nodes, volumes and snapshots, each listing whole or not at all.


_PAGE_SIZE = 1000
_GROUP_PAGE_SIZE = 100
"""As many as AWS gives at once."""


class AwsInventory:
    def __init__(self, client: AwsClient, environment_tag: EnvironmentTag) -> None:
        self._client = client
        self._environment_tag = environment_tag
        self._volume_listing: asyncio.Future[frozenset[str] | None] | None = None
        """The volumes of the listing just before, or under way: their snapshots are ours though nobody tagged them.
        Used once, since later there may be other volumes. None: it came to nothing."""

    async def node_groups(self, prefix: str) -> list[NodeGroup]:
        # Auto Scaling finds groups by whole names and tags only, so all are looked at.
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
        # By id: a listing that is read while things change may tell of one twice.
        found: dict[str, Volume] = {}
        parameters = {"Filters": [{"Name": "tag-key", "Values": [OWNER_TAG]}], "MaxResults": _PAGE_SIZE}
        async for page in self._client.list_pages(Action.DESCRIBE_VOLUMES, "Volumes", parameters):
            found.update({volume.volume_id: volume for volume in map(parse_volume, page) if volume is not None})
        return found

    async def snapshots(self) -> list[Snapshot]:
        """In one listing of the whole account: asking for each volume's takes a request for every 200 of them."""
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
