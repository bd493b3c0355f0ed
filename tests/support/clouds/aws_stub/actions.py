"""What each action does: from a request's parameters to the account and back to an answer."""

from collections.abc import Callable

from support.clouds.aws_stub import rendering
from support.clouds.aws_stub.account import OWNER_ID, Account, Refused, Snapshot, Volume
from support.clouds.aws_stub.query import Filters, Pages, Request, matches_tags


def answer(account: Account, pages: Pages, request: Request) -> str:
    """Raises Refused."""
    try:
        act = ACTIONS[request.service, request.action]
    except KeyError:
        raise Refused("InvalidAction", f"The action {request.action} is not valid for this web service.") from None
    return act(account, pages, request)


def _describe_volumes(account: Account, pages: Pages, request: Request) -> str:
    filters = request.filters()
    _know("DescribeVolumes", filters, {"volume-id", "status", "availability-zone", "attachment.instance-id"})
    if ids := request.numbered("VolumeId"):
        _no_pages(request)
        found = [volume for volume in map(account.get_volume, ids) if _volume_matches(volume, filters)]
        return rendering.ec2_listing("DescribeVolumes", "volumeSet", map(_volume_item, found), None)
    page = pages.cut(
        request,
        account.volumes,
        keep=lambda volume: _volume_matches(volume, filters) and account.seen(volume),
    )
    return rendering.ec2_listing("DescribeVolumes", "volumeSet", map(_volume_item, page.things), page.next_token)


def _describe_snapshots(account: Account, pages: Pages, request: Request) -> str:
    filters = request.filters()
    _know("DescribeSnapshots", filters, {"volume-id", "status", "snapshot-id"})
    owners = [OWNER_ID if owner == "self" else owner for owner in request.numbered("Owner")]
    if ids := request.numbered("SnapshotId"):
        _no_pages(request)
        found = [
            snapshot for snapshot in map(account.get_snapshot, ids) if _snapshot_matches(snapshot, owners, filters)
        ]
        return rendering.ec2_listing("DescribeSnapshots", "snapshotSet", map(_snapshot_item, found), None)
    page = pages.cut(
        request,
        account.snapshots,
        keep=lambda snapshot: _snapshot_matches(snapshot, owners, filters) and account.seen(snapshot),
    )
    return rendering.ec2_listing("DescribeSnapshots", "snapshotSet", map(_snapshot_item, page.things), page.next_token)


def _describe_modifications(account: Account, pages: Pages, request: Request) -> str:
    ids, filters = request.numbered("VolumeId"), request.filters()
    _know("DescribeVolumesModifications", filters, {"volume-id"})
    for volume_id in ids:
        account.get_volume(volume_id)
        if volume_id not in account.modifications:
            raise Refused(
                "InvalidVolumeModification.NotFound", f"Modification for volume '{volume_id}' does not exist."
            )
    page = pages.cut(
        request,
        account.modifications,
        keep=lambda modification: (
            modification.volume_id in (ids or (modification.volume_id,))
            and modification.volume_id in filters.get("volume-id", (modification.volume_id,))
        ),
    )
    items = (f"<item>{rendering.modification_fields(modification)}</item>" for modification in page.things)
    return rendering.ec2_listing("DescribeVolumesModifications", "volumeModificationSet", items, page.next_token)


def _describe_zones(account: Account, pages: Pages, request: Request) -> str:
    items = (f"<item><zoneName>{zone}</zoneName><zoneState>available</zoneState></item>" for zone in account.zones)
    return rendering.ec2_listing("DescribeAvailabilityZones", "availabilityZoneInfo", items, None)


def _describe_instances(account: Account, pages: Pages, request: Request) -> str:
    wanted = set(request.numbered("InstanceId"))
    seen = sorted(
        {attachment.instance_id for volume in account.volumes.values() for attachment in volume.attachments}
        & (
            wanted
            or {attachment.instance_id for volume in account.volumes.values() for attachment in volume.attachments}
        )
    )
    items = (
        f"<item><reservationId>r-{name[2:]}</reservationId><ownerId>{OWNER_ID}</ownerId><instancesSet><item>"
        f"<instanceId>{name}</instanceId><instanceState><code>16</code><name>running</name></instanceState>"
        "</item></instancesSet></item>"
        for name in seen
    )
    return rendering.ec2_listing("DescribeInstances", "reservationSet", items, None)


def _create_volume(account: Account, pages: Pages, request: Request) -> str:
    size = request.parameters.get("Size")
    volume = account.create_volume(
        zone=request.get("AvailabilityZone"),
        size_gb=None if size is None else int(size),
        snapshot_id=request.parameters.get("SnapshotId", ""),
        tags=request.specified_tags("volume"),
        client_token=request.parameters.get("ClientToken", ""),
    )
    return rendering.ec2_answer("CreateVolume", rendering.volume_fields(volume))


def _create_snapshot(account: Account, pages: Pages, request: Request) -> str:
    if "ClientToken" in request.parameters:
        raise Refused("UnknownParameter", "The parameter ClientToken is not recognized")
    snapshot = account.create_snapshot(request.get("VolumeId"), request.specified_tags("snapshot"))
    return rendering.ec2_answer("CreateSnapshot", rendering.snapshot_fields(snapshot))


def _create_tags(account: Account, pages: Pages, request: Request) -> str:
    for resource_id in request.numbered("ResourceId"):
        account.tag(resource_id, request.tags())
    return rendering.ec2_answer("CreateTags", "<return>true</return>")


def _modify_volume(account: Account, pages: Pages, request: Request) -> str:
    modification = account.modify_volume(request.get("VolumeId"), int(request.get("Size")))
    fields = rendering.modification_fields(modification)
    return rendering.ec2_answer("ModifyVolume", f"<volumeModification>{fields}</volumeModification>")


def _delete_volume(account: Account, pages: Pages, request: Request) -> str:
    account.delete_volume(request.get("VolumeId"))
    return rendering.ec2_answer("DeleteVolume", "<return>true</return>")


def _delete_snapshot(account: Account, pages: Pages, request: Request) -> str:
    account.delete_snapshot(request.get("SnapshotId"))
    return rendering.ec2_answer("DeleteSnapshot", "<return>true</return>")


def _describe_groups(account: Account, pages: Pages, request: Request) -> str:
    wanted = request.numbered("AutoScalingGroupNames.member")
    page = pages.cut(
        request,
        account.groups,
        keep=lambda group: not wanted or group.name in wanted,
    )
    members = "".join(rendering.group_member(group, account.zones) for group in page.things)
    more = f"<NextToken>{page.next_token}</NextToken>" if page.next_token else ""
    return rendering.autoscaling_answer(
        "DescribeAutoScalingGroups", f"<AutoScalingGroups>{members}</AutoScalingGroups>{more}"
    )


def _describe_refreshes(account: Account, pages: Pages, request: Request) -> str:
    group = account.get_group(request.get("AutoScalingGroupName"))
    most = int(request.parameters.get("MaxRecords", "50"))
    members = "".join(rendering.refresh_member(group, one) for one in group.refreshes[:most])
    return rendering.autoscaling_answer(
        "DescribeInstanceRefreshes", f"<InstanceRefreshes>{members}</InstanceRefreshes>"
    )


def _start_refresh(account: Account, pages: Pages, request: Request) -> str:
    preferences = {
        name.removeprefix("Preferences."): value
        for name, value in request.parameters.items()
        if name.startswith("Preferences.")
    }
    begun = account.start_refresh(request.get("AutoScalingGroupName"), preferences)
    return rendering.autoscaling_answer(
        "StartInstanceRefresh", f"<InstanceRefreshId>{begun.refresh_id}</InstanceRefreshId>"
    )


def _volume_item(volume: Volume) -> str:
    return f"<item>{rendering.volume_fields(volume)}</item>"


def _snapshot_item(snapshot: Snapshot) -> str:
    return f"<item>{rendering.snapshot_fields(snapshot)}</item>"


def _volume_matches(volume: Volume, filters: Filters) -> bool:
    machines = [attachment.instance_id for attachment in volume.attachments]
    return (
        matches_tags(filters, volume.tags)
        and volume.volume_id in filters.get("volume-id", (volume.volume_id,))
        and volume.state in filters.get("status", (volume.state,))
        and volume.zone in filters.get("availability-zone", (volume.zone,))
        and ("attachment.instance-id" not in filters or not set(machines).isdisjoint(filters["attachment.instance-id"]))
    )


def _snapshot_matches(snapshot: Snapshot, owners: list[str], filters: Filters) -> bool:
    return (
        snapshot.owner_id in (owners or (snapshot.owner_id,))
        and matches_tags(filters, snapshot.tags)
        and snapshot.snapshot_id in filters.get("snapshot-id", (snapshot.snapshot_id,))
        and snapshot.volume_id in filters.get("volume-id", (snapshot.volume_id,))
        and snapshot.state in filters.get("status", (snapshot.state,))
    )


def _know(action: str, filters: Filters, known: set[str]) -> None:
    for name in filters:
        if name not in known and name != "tag-key" and not name.startswith("tag:"):
            raise Refused("InvalidParameterValue", f"The filter '{name}' is invalid for {action}")


def _no_pages(request: Request) -> None:
    if "MaxResults" in request.parameters:
        raise Refused("InvalidParameterCombination", "The parameter MaxResults cannot be used with ids")


ACTIONS: dict[tuple[str, str], Callable[[Account, Pages, Request], str]] = {
    ("ec2", "DescribeVolumes"): _describe_volumes,
    ("ec2", "DescribeSnapshots"): _describe_snapshots,
    ("ec2", "DescribeVolumesModifications"): _describe_modifications,
    ("ec2", "DescribeAvailabilityZones"): _describe_zones,
    ("ec2", "DescribeInstances"): _describe_instances,
    ("ec2", "CreateVolume"): _create_volume,
    ("ec2", "CreateSnapshot"): _create_snapshot,
    ("ec2", "CreateTags"): _create_tags,
    ("ec2", "ModifyVolume"): _modify_volume,
    ("ec2", "DeleteVolume"): _delete_volume,
    ("ec2", "DeleteSnapshot"): _delete_snapshot,
    ("autoscaling", "DescribeAutoScalingGroups"): _describe_groups,
    ("autoscaling", "DescribeInstanceRefreshes"): _describe_refreshes,
    ("autoscaling", "StartInstanceRefresh"): _start_refresh,
}
