"""Answers before the AWS library reads them: whether they are AWS's at all, and the two long listings read quickly.

The library takes 0.2 ms for each volume or snapshot, which for tens of thousands is the better part of a pass, and
holds up everything else meanwhile. Here only what we use is read, into the same shape; what is short, and everything
we do not understand, is left to the library.
"""

import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

_PROLOGUE = 1024
_OF_ATTACHMENTS = {"instanceId": "InstanceId", "associatedResource": "AssociatedResource", "status": "State"}
_Told = dict[str, Any]


class NotAws(Exception):
    """Something else answered in AWS's place."""


def read_quickly(client: Any) -> None:
    """Let this client of the AWS library have its answers looked at here first."""
    service = client.meta.service_model.service_id.hyphenize()
    client.meta.events.register(f"before-parse.{service}", _look_at)


def _look_at(
    operation_model: Any, response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any
) -> None:
    """`customized_response_dict` is what the library adds to what it reads from the response by itself."""
    if response_dict["status_code"] >= 300:
        return
    action, body = operation_model.name, response_dict["body"]
    # A success is told in an element that is called after the action. A proxy that wants a log-in tells one too.
    if f"<{action}Response".encode() not in body[:_PROLOGUE]:
        raise NotAws(f"what answered {action} was not AWS")
    if (long := _LONG.get(action)) is not None:
        customized_response_dict |= _take_out(*long, response_dict)


def _take_out(set_name: str, key: str, read: "_Read", response: dict[str, Any]) -> _Told:
    """The set's items. The library gets the rest of the response: where the listing goes on."""
    try:
        root = ElementTree.fromstring(response["body"])
        space = root.tag.rpartition("}")[0] + "}" if "}" in root.tag else ""
        found = root.find(space + set_name)
        if found is None:
            return {}
        items = [read(item, len(space)) for item in found]
    except (ElementTree.ParseError, ValueError) as error:
        raise NotAws(f"an answer of AWS ends early or is damaged: {error}") from error
    root.remove(found)
    response["body"] = ElementTree.tostring(root)
    return {key: items}


def _volume(item: Element, skip: int) -> _Told:
    told: _Told = {}
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
                told["Attachments"] = [_attachment(attachment, skip) for attachment in field]
            case "tagSet":
                told["Tags"] = _tags(field)
    return told


def _snapshot(item: Element, skip: int) -> _Told:
    told: _Told = {}
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
                told["Tags"] = _tags(field)
    return told


def _attachment(item: Element, skip: int) -> _Told:
    return {_OF_ATTACHMENTS[name]: field.text for field in item if (name := field.tag[skip:]) in _OF_ATTACHMENTS}


def _tags(items: Element) -> list[_Told]:
    return [{"Key": key.text or "", "Value": value.text or ""} for key, value in items]


_Read = Callable[[Element, int], _Told]
_LONG: dict[str, tuple[str, str, _Read]] = {
    "DescribeVolumes": ("volumeSet", "Volumes", _volume),
    "DescribeSnapshots": ("snapshotSet", "Snapshots", _snapshot),
}
