"""What AWS tells of volumes, snapshots and groups, as the port's values."""

import sys
from collections.abc import Mapping
from typing import Any

from gpudev.domain.errors import Unavailable
from gpudev.ports.cloud import NodeGroup, Snapshot, SnapshotState, Volume

_GOING = frozenset({"deleting", "deleted"})
_IN_SERVICE = "InService"
_DETACHED = "detached"
_FAILED = "error"
_STATES = {
    "pending": SnapshotState.PENDING,
    "completed": SnapshotState.COMPLETED,
    "error": SnapshotState.ERROR,
    "recoverable": SnapshotState.ERROR,  # in the recycle bin: it cannot be restored as it is
    "recovering": SnapshotState.PENDING,
}


def volume_from(told: Mapping[str, Any]) -> Volume | None:
    """None: it is on its way out, from which nothing comes back."""
    try:
        return _volume_from(told)
    except KeyError as missing:
        raise _not_whole("volume", missing) from missing


def snapshot_from(told: Mapping[str, Any]) -> Snapshot:
    try:
        return _snapshot_from(told)
    except KeyError as missing:
        raise _not_whole("snapshot", missing) from missing


def group_from(told: Mapping[str, Any]) -> NodeGroup:
    running = sum(instance.get("LifecycleState") == _IN_SERVICE for instance in told.get("Instances", ()))
    try:
        return NodeGroup(told["AutoScalingGroupName"], told["DesiredCapacity"], running)
    except KeyError as missing:
        raise _not_whole("node group", missing) from missing


def _not_whole(what: str, missing: KeyError) -> Unavailable:
    """What lacks something that AWS always tells was not told whole."""
    return Unavailable(f"AWS tells of a {what} without its {missing}")


def _volume_from(told: Mapping[str, Any]) -> Volume | None:
    if told.get("State") in _GOING:
        return None
    return Volume(
        told["VolumeId"],
        told["Size"],
        told["CreateTime"],
        told.get("AvailabilityZone"),
        tuple(
            sorted(
                # AWS's own services hold volumes without a machine of ours.
                attachment.get("InstanceId") or attachment.get("AssociatedResource") or "somebody"
                for attachment in told.get("Attachments", ())
                if attachment.get("State") != _DETACHED
            )
        ),
        _tags_from(told),
        _failed(told),
    )


def _failed(told: Mapping[str, Any]) -> str | None:
    """What is on such a volume cannot be read any more, and nothing can be attached to it."""
    return f"AWS says that volume {told['VolumeId']} has failed" if told.get("State") == _FAILED else None


def _snapshot_from(told: Mapping[str, Any]) -> Snapshot:
    state = _STATES.get(told["State"])
    if state is None:
        raise Unavailable(f"AWS tells of a snapshot in the unknown state {told['State']!r}")
    return Snapshot(
        told["SnapshotId"],
        told["VolumeId"],
        state,
        told["StartTime"],
        told["VolumeSize"],
        _tags_from(told),
        told.get("StateMessage") or None if state is SnapshotState.ERROR else None,
    )


def _tags_from(told: Mapping[str, Any]) -> dict[str, str]:
    # There are few keys and tens of thousands of tags.
    return {sys.intern(tag["Key"]): tag["Value"] for tag in told.get("Tags", ())}
