"""Parsing of AWS responses: volumes, snapshots and node groups as values of the port.

Every response is checked to be AWS's before the library parses it. The two long listings are parsed here, because the
library takes 0.2 ms per volume or snapshot: for tens of thousands that is most of a reconcile run, and blocks
everything else. Only the fields that we use are read, into the same form. The rest of the response is left to
the library.
"""

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
    """None: it is being deleted, and nothing can be recovered from it."""
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


def _incomplete(kind: str, missing: KeyError) -> Unavailable:
    """AWS always sends these fields, so without one the response is incomplete."""
    return Unavailable(f"incomplete AWS response: {kind} without {missing}")


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
                # AWS's own services can hold volumes without a machine of ours.
                attachment.get("InstanceId") or attachment.get("AssociatedResource") or "an AWS service"
                for attachment in fields.get("Attachments", ())
                if attachment.get("State") != _DETACHED
            )
        ),
        _parse_tags(fields),
        _failure_reason(fields),
    )


def _failure_reason(fields: Mapping[str, Any]) -> str | None:
    """The files of a failed volume are lost, and it cannot be attached. None: it has not failed."""
    return f"volume {fields['VolumeId']} has failed in AWS" if fields.get("State") == _FAILED else None


def _parse_snapshot(fields: Mapping[str, Any]) -> Snapshot:
    state = _SNAPSHOT_STATES.get(fields["State"])
    if state is None:
        raise Unavailable(f"invalid AWS response: unknown snapshot state {fields['State']!r}")
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
    # Interned: tens of thousands of tags have few different keys.
    return {sys.intern(tag["Key"]): tag["Value"] for tag in fields.get("Tags", ())}


# Responses before the AWS library parses them.


_PROLOGUE_BYTES = 1024
_ATTACHMENT_FIELDS = {"instanceId": "InstanceId", "associatedResource": "AssociatedResource", "status": "State"}
_Fields = dict[str, Any]


class NotAwsResponse(Exception):
    """The response is not AWS's, or damaged."""


def install_fast_parser(client: Any) -> None:
    """Hook into this client of the AWS library, before it parses a response."""
    service = client.meta.service_model.service_id.hyphenize()
    client.meta.events.register(f"before-parse.{service}", _before_parse)


def _before_parse(
    operation_model: Any, response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any
) -> None:
    """`customized_response_dict`: the library adds it to what it parses itself."""
    if response_dict["status_code"] >= 300:
        return
    action, body = operation_model.name, response_dict["body"]
    # A success has an element named after the action. A login page of a proxy has a success status too.
    if f"<{action}Response".encode() not in body[:_PROLOGUE_BYTES]:
        raise NotAwsResponse(f"invalid AWS response to {action}")
    if (listing := _LONG_LISTINGS.get(action)) is not None:
        customized_response_dict |= _extract_items(*listing, response_dict)


def _extract_items(set_name: str, key: str, read: "_ElementReader", response: dict[str, Any]) -> _Fields:
    """The set's items. The library gets the rest of the response, which has the token of the next page."""
    try:
        root = ElementTree.fromstring(response["body"])
        namespace = root.tag.rpartition("}")[0] + "}" if "}" in root.tag else ""
        found = root.find(namespace + set_name)
        if found is None:
            return {}
        items = [read(item, len(namespace)) for item in found]
    except (ElementTree.ParseError, ValueError) as error:
        raise NotAwsResponse(f"the AWS response is incomplete or damaged: {error}") from error
    root.remove(found)
    response["body"] = ElementTree.tostring(root)
    return {key: items}


def _read_volume_element(item: Element, skip: int) -> _Fields:
    fields: _Fields = {}
    for field in item:
        match field.tag[skip:]:
            case "volumeId":
                fields["VolumeId"] = field.text
            case "size":
                fields["Size"] = int(field.text or "")
            case "createTime":
                fields["CreateTime"] = datetime.fromisoformat(field.text or "")
            case "availabilityZone":
                fields["AvailabilityZone"] = sys.intern(field.text or "")
            case "status":
                fields["State"] = field.text
            case "attachmentSet":
                fields["Attachments"] = [_read_attachment_element(attachment, skip) for attachment in field]
            case "tagSet":
                fields["Tags"] = _read_tags_element(field)
    return fields


def _read_snapshot_element(item: Element, skip: int) -> _Fields:
    fields: _Fields = {}
    for field in item:
        match field.tag[skip:]:
            case "snapshotId":
                fields["SnapshotId"] = field.text
            case "volumeId":
                fields["VolumeId"] = sys.intern(field.text or "")
            case "status":
                fields["State"] = field.text
            case "startTime":
                fields["StartTime"] = datetime.fromisoformat(field.text or "")
            case "volumeSize":
                fields["VolumeSize"] = int(field.text or "")
            case "tagSet":
                fields["Tags"] = _read_tags_element(field)
    return fields


def _read_attachment_element(item: Element, skip: int) -> _Fields:
    return {_ATTACHMENT_FIELDS[name]: field.text for field in item if (name := field.tag[skip:]) in _ATTACHMENT_FIELDS}


def _read_tags_element(items: Element) -> list[_Fields]:
    return [{"Key": key.text or "", "Value": value.text or ""} for key, value in items]


_ElementReader = Callable[[Element, int], _Fields]
_LONG_LISTINGS: dict[str, tuple[str, str, _ElementReader]] = {
    "DescribeVolumes": ("volumeSet", "Volumes", _read_volume_element),
    "DescribeSnapshots": ("snapshotSet", "Snapshots", _read_snapshot_element),
}
