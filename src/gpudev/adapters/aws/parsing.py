"""What AWS tells of volumes, snapshots and groups, as the port's values."""

import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

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


# Answers before the AWS library reads them: whether they are AWS's at all, and the two long listings read quickly.
#
# The library takes 0.2 ms for each volume or snapshot, which for tens of thousands is the better part of a pass, and
# holds up everything else meanwhile. Here only what we use is read, into the same shape; what is short, and everything
# we do not understand, is left to the library.


_PROLOGUE_BYTES = 1024
_ATTACHMENT_FIELDS = {"instanceId": "InstanceId", "associatedResource": "AssociatedResource", "status": "State"}
_Fields = dict[str, Any]


class NotAwsResponse(Exception):
    """Something else answered in AWS's place."""


def install_fast_parser(client: Any) -> None:
    """Let this client of the AWS library have its answers looked at here first."""
    service = client.meta.service_model.service_id.hyphenize()
    client.meta.events.register(f"before-parse.{service}", _before_parse)


def _before_parse(
    operation_model: Any, response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any
) -> None:
    """`customized_response_dict` is what the library adds to what it reads from the response by itself."""
    if response_dict["status_code"] >= 300:
        return
    action, body = operation_model.name, response_dict["body"]
    # A success is told in an element that is called after the action. A proxy that wants a log-in tells one too.
    if f"<{action}Response".encode() not in body[:_PROLOGUE_BYTES]:
        raise NotAwsResponse(f"what answered {action} was not AWS")
    if (long := _LONG_LISTINGS.get(action)) is not None:
        customized_response_dict |= _extract_items(*long, response_dict)


def _extract_items(set_name: str, key: str, read: "_ElementReader", response: dict[str, Any]) -> _Fields:
    """The set's items. The library gets the rest of the response: where the listing goes on."""
    try:
        root = ElementTree.fromstring(response["body"])
        space = root.tag.rpartition("}")[0] + "}" if "}" in root.tag else ""
        found = root.find(space + set_name)
        if found is None:
            return {}
        items = [read(item, len(space)) for item in found]
    except (ElementTree.ParseError, ValueError) as error:
        raise NotAwsResponse(f"an answer of AWS ends early or is damaged: {error}") from error
    root.remove(found)
    response["body"] = ElementTree.tostring(root)
    return {key: items}


def _read_volume_element(item: Element, skip: int) -> _Fields:
    told: _Fields = {}
    for field in item:
        match field.tag[skip:]:
            case "volumeId":
                told["VolumeId"] = field.text
            case "size":
                told["Size"] = int(field.text or "")
            case "createTime":
                told["CreateTime"] = datetime.fromisoformat(field.text or "")
            case "availabilityZone":
                told["AvailabilityZone"] = sys.intern(field.text or "")
            case "status":
                told["State"] = field.text
            case "attachmentSet":
                told["Attachments"] = [_read_attachment_element(attachment, skip) for attachment in field]
            case "tagSet":
                told["Tags"] = _read_tags_element(field)
    return told


def _read_snapshot_element(item: Element, skip: int) -> _Fields:
    told: _Fields = {}
    for field in item:
        match field.tag[skip:]:
            case "snapshotId":
                told["SnapshotId"] = field.text
            case "volumeId":
                told["VolumeId"] = sys.intern(field.text or "")
            case "status":
                told["State"] = field.text
            case "startTime":
                told["StartTime"] = datetime.fromisoformat(field.text or "")
            case "volumeSize":
                told["VolumeSize"] = int(field.text or "")
            case "tagSet":
                told["Tags"] = _read_tags_element(field)
    return told


def _read_attachment_element(item: Element, skip: int) -> _Fields:
    return {_ATTACHMENT_FIELDS[name]: field.text for field in item if (name := field.tag[skip:]) in _ATTACHMENT_FIELDS}


def _read_tags_element(items: Element) -> list[_Fields]:
    return [{"Key": key.text or "", "Value": value.text or ""} for key, value in items]


_ElementReader = Callable[[Element, int], _Fields]
_LONG_LISTINGS: dict[str, tuple[str, str, _ElementReader]] = {
    "DescribeVolumes": ("volumeSet", "Volumes", _read_volume_element),
    "DescribeSnapshots": ("snapshotSet", "Snapshots", _read_snapshot_element),
}
