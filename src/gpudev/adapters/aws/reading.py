"""What AWS tells of volumes, snapshots and groups, as the port's values."""

import sys
from collections.abc import Mapping
from typing import Any

from gpudev.domain.errors import Unavailable
from gpudev.ports.cloud import NodeGroup, Snapshot, SnapshotState, Volume

_DELETING_STATES = frozenset({"deleting", "deleted"})
_IN_SERVICE = "InService"
_DETACHED = "detached"
_FAILED = "error"
_SNAPSHOT_STATES = {
    "pending": SnapshotState.PENDING,
    "completed": SnapshotState.COMPLETED,
    "error": SnapshotState.ERROR,
    "recoverable": SnapshotState.ERROR,  # in the recycle bin: it cannot be restored as it is
    "recovering": SnapshotState.PENDING,
}


def parse_volume(fields: Mapping[str, Any]) -> Volume | None:
    """None: it is on its way out, from which nothing comes back."""
    try:
        return _parse_volume(fields)
    except KeyError as missing:
        raise _incomplete("volume", missing) from missing


def parse_snapshot(fields: Mapping[str, Any]) -> Snapshot:
    try:
        return _parse_snapshot(fields)
    except KeyError as missing:
        raise _incomplete("snapshot", missing) from missing


def parse_node_group(fields: Mapping[str, Any]) -> NodeGroup:
    running = sum(instance.get("LifecycleState") == _IN_SERVICE for instance in fields.get("Instances", ()))
    try:
        return NodeGroup(fields["AutoScalingGroupName"], fields["DesiredCapacity"], running)
    except KeyError as missing:
        raise _incomplete("node group", missing) from missing


def _incomplete(what: str, missing: KeyError) -> Unavailable:
    """What lacks something that AWS always tells was not told whole."""
    return Unavailable(f"AWS tells of a {what} without its {missing}")


def _parse_volume(fields: Mapping[str, Any]) -> Volume | None:
    if fields.get("State") in _DELETING_STATES:
        return None
    return Volume(
        fields["VolumeId"],
        fields["Size"],
        fields["CreateTime"],
        fields.get("AvailabilityZone"),
        tuple(
            sorted(
                # AWS's own services hold volumes without a machine of ours.
                attachment.get("InstanceId") or attachment.get("AssociatedResource") or "somebody"
                for attachment in fields.get("Attachments", ())
                if attachment.get("State") != _DETACHED
            )
        ),
        _parse_tags(fields),
        _failure_reason(fields),
    )


def _failure_reason(fields: Mapping[str, Any]) -> str | None:
    """What is on such a volume cannot be read any more, and nothing can be attached to it."""
    return f"AWS says that volume {fields['VolumeId']} has failed" if fields.get("State") == _FAILED else None


def _parse_snapshot(fields: Mapping[str, Any]) -> Snapshot:
    state = _SNAPSHOT_STATES.get(fields["State"])
    if state is None:
        raise Unavailable(f"AWS tells of a snapshot in the unknown state {fields['State']!r}")
    return Snapshot(
        fields["SnapshotId"],
        fields["VolumeId"],
        state,
        fields["StartTime"],
        fields["VolumeSize"],
        _parse_tags(fields),
        fields.get("StateMessage") or None if state is SnapshotState.ERROR else None,
    )


def _parse_tags(fields: Mapping[str, Any]) -> dict[str, str]:
    # There are few keys and tens of thousands of tags.
    return {sys.intern(tag["Key"]): tag["Value"] for tag in fields.get("Tags", ())}
