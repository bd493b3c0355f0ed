"""What there is in one project, as the REST API tells it, and what changes it. Numbers of 64 bits are texts there."""

import base64
import hashlib
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

from support.clouds.gcp_stub.faults import Refused

Resource = dict[str, Any]
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_PACIFIC = timezone(timedelta(hours=-8))
"""GCP tells its times like this."""
_BASE = "https://www.googleapis.com/compute/v1/"


@dataclass(frozen=True, slots=True)
class Failure:
    """What becomes of the next operation of a kind, instead of its effect."""

    operation_type: str
    code: str
    status: int
    message: str = "failed by the test"


@dataclass(slots=True)
class Running:
    """An operation, and what happens when it is done."""

    resource: Resource
    requests_left: float
    finish: Any


@dataclass
class Project:
    name: str = "lab-1"
    zones: tuple[str, ...] = ("us-central1-a", "us-central1-b", "europe-west4-a")
    disks: dict[str, Resource] = field(default_factory=dict)
    """By their paths."""
    snapshots: dict[str, Resource] = field(default_factory=dict)
    groups: dict[str, Resource] = field(default_factory=dict)
    operations: dict[str, Running] = field(default_factory=dict)
    slowness: int = 1
    """So many requests come in before an operation is done."""
    failures: list[Failure] = field(default_factory=list)
    hide: int = 0
    """What is made is missing from so many answers about it."""
    _hidden: dict[str, int] = field(default_factory=dict)
    _known_requests: dict[str, str] = field(default_factory=dict)
    _numbers: Any = field(default_factory=lambda: itertools.count(4_000_000_000_000_000_001))

    # --- what tests put in -------------------------------------------------------------------------------------------

    def put_disk(self, zone: str, name: str, *, size_gb: int, labels: Mapping[str, str], created_at: datetime) -> str:
        path = f"projects/{self.name}/zones/{zone}/disks/{name}"
        self.disks[path] = self._resource("disk", path, created_at) | {
            "zone": f"{_BASE}projects/{self.name}/zones/{zone}",
            "sizeGb": str(size_gb),
            "status": "READY",
            "labels": dict(labels),
            "labelFingerprint": fingerprint(labels),
        }
        return path

    def put_snapshot(
        self, name: str, disk: Resource, *, labels: Mapping[str, str], created_at: datetime, status: str = "READY"
    ) -> str:
        path = f"projects/{self.name}/global/snapshots/{name}"
        self.snapshots[path] = self._resource("snapshot", path, created_at) | {
            "sourceDisk": disk["selfLink"],
            "sourceDiskId": disk["id"],
            "diskSizeGb": disk["sizeGb"],
            "status": status,
            "labels": dict(labels),
        }
        return path

    def put_group(self, scope: str, name: str, *, target: int, actions: Mapping[str, int]) -> None:
        path = f"projects/{self.name}/{scope}/instanceGroupManagers/{name}"
        self.groups[path] = self._resource("instanceGroupManager", path, datetime.now(UTC)) | {
            "targetSize": target,
            "currentActions": dict(actions),
        }

    def _resource(self, kind: str, path: str, created_at: datetime) -> Resource:
        return {
            "kind": f"compute#{kind}",
            "id": str(next(self._numbers)),
            "name": path.rpartition("/")[2],
            "selfLink": _BASE + path,
            "creationTimestamp": created_at.astimezone(_PACIFIC).isoformat(timespec="milliseconds"),
        }

    # --- what is asked -----------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """A request came in: operations go on."""
        for running in self.operations.values():
            running.requests_left -= 1
            if running.requests_left <= 0:
                self._finish(running)

    def _finish(self, running: Running) -> None:
        if running.resource["status"] == "DONE":
            return
        running.resource |= {"status": "DONE", "progress": 100}
        if running.finish is not None:
            running.finish()

    def find(self, shelf: Mapping[str, Resource], path: str) -> Resource:
        if path not in shelf or self.is_hidden(path):
            raise _missing(path)
        return shelf[path]

    def is_hidden(self, path: str) -> bool:
        left = self._hidden.get(path, 0)
        if left:
            self._hidden[path] = left - 1
        return left > 0

    def operation(self, path: str) -> Resource:
        if path not in self.operations:
            raise _missing(path)
        return self.operations[path].resource

    # --- what is changed ---------------------------------------------------------------------------------------------

    def insert_disk(self, zone: str, body: Resource, request_id: str) -> Resource:
        if known := self._known(request_id):
            return known
        path = f"projects/{self.name}/zones/{zone}/disks/{body.get('name', '')}"
        _check_new(body, path, self.disks)
        if zone not in self.zones:
            raise Refused(400, "invalid", f"Invalid value for field 'zone': '{zone}'. Unknown zone.")
        size_gb = int(body["sizeGb"])
        if source := body.get("sourceSnapshot"):
            snapshot = self._existing(self.snapshots, source[source.index("projects/") :])
            if snapshot["status"] != "READY":
                raise Refused(400, "resourceNotReady", f"The resource '{source}' is not ready")
            if size_gb < int(snapshot["diskSizeGb"]):
                raise Refused(400, "invalid", "Requested disk size cannot be smaller than the snapshot size")
        if failed := self._failing("insert", zone, path, request_id):
            return failed
        self.put_disk(zone, body["name"], size_gb=size_gb, labels=body.get("labels", {}), created_at=datetime.now(UTC))
        self.disks[path] |= {"status": "CREATING", "type": _BASE + body["type"]}
        self._hidden[path] = self.hide
        return self._begin("insert", zone, path, request_id, lambda: self.disks[path].update(status="READY"))

    def delete(self, shelf: dict[str, Resource], zone: str | None, path: str, request_id: str) -> Resource:
        if known := self._known(request_id):
            return known
        resource = self._existing(shelf, path)
        if users := resource.get("users"):
            raise Refused(
                400, "resourceInUseByAnotherResource", f"The resource '{path}' is already being used by '{users[0]}'"
            )
        if resource["status"] == "DELETING":
            raise Refused(400, "resourceNotReady", f"The resource '{path}' is not ready")
        if failed := self._failing("delete", zone, path, request_id):
            return failed
        resource["status"] = "DELETING"
        return self._begin("delete", zone, path, request_id, lambda: shelf.pop(path))

    def resize(self, zone: str, path: str, body: Resource, request_id: str) -> Resource:
        if known := self._known(request_id):
            return known
        disk, size_gb = self._existing(self.disks, path), int(body["sizeGb"])
        if size_gb < int(disk["sizeGb"]):
            raise Refused(400, "invalid", "Disk cannot be resized to a smaller size")
        if failed := self._failing("resize", zone, path, request_id):
            return failed
        return self._begin("resize", zone, path, request_id, lambda: disk.update(sizeGb=str(size_gb)))

    def set_labels(self, zone: str, path: str, body: Resource, request_id: str) -> Resource:
        if known := self._known(request_id):
            return known
        disk, labels = self._existing(self.disks, path), body.get("labels", {})
        if body.get("labelFingerprint") != disk["labelFingerprint"]:
            raise Refused(412, "conditionNotMet", "Labels fingerprint either invalid or resource labels have changed")
        _check_labels(labels)
        if failed := self._failing("setLabels", zone, path, request_id):
            return failed
        disk |= {"labels": dict(labels), "labelFingerprint": fingerprint(labels)}
        return self._begin("setLabels", zone, path, request_id)

    def create_snapshot(self, zone: str, disk_path: str, body: Resource, request_id: str) -> Resource:
        if known := self._known(request_id):
            return known
        disk = self._existing(self.disks, disk_path)
        path = f"projects/{self.name}/global/snapshots/{body.get('name', '')}"
        _check_new(body, path, self.snapshots)
        if failed := self._failing("createSnapshot", zone, disk_path, request_id):
            return failed
        self.put_snapshot(
            body["name"], disk, labels=body.get("labels", {}), created_at=datetime.now(UTC), status="CREATING"
        )
        self._hidden[path] = self.hide
        operation = self._begin("createSnapshot", zone, disk_path, request_id, lambda: self.complete(path))
        self.operations[operation["selfLink"].removeprefix(_BASE)].requests_left = float("inf")
        return operation

    def complete(self, snapshot_path: str) -> None:
        self.snapshots[snapshot_path]["status"] = "READY"

    def _existing(self, shelf: Mapping[str, Resource], path: str) -> Resource:
        if path not in shelf:
            raise _missing(path)
        return shelf[path]

    def _known(self, request_id: str) -> Resource | None:
        """The same request again does nothing: its operation is told, failed or not."""
        try:
            number = UUID(request_id).int
        except ValueError:
            number = 0
        if not number:
            raise Refused(400, "invalid", "Invalid value for field 'requestId'.")
        path = self._known_requests.get(request_id)
        return None if path is None else self.operations[path].resource

    def _begin(self, kind: str, zone: str | None, target: str, request_id: str, finish: Any = None) -> Resource:
        scope = f"zones/{zone}" if zone else "global"
        path = f"projects/{self.name}/{scope}/operations/operation-{next(self._numbers)}"
        resource = self._resource("operation", path, datetime.now(UTC)) | {
            "operationType": kind,
            "status": "RUNNING",
            "progress": 0,
            "targetLink": _BASE + target,
        }
        if zone:
            resource["zone"] = f"{_BASE}projects/{self.name}/zones/{zone}"
        self.operations[path] = Running(resource, self.slowness, finish)
        self._known_requests[request_id] = path
        if not self.slowness:
            self._finish(self.operations[path])
        return resource

    def _failing(self, kind: str, zone: str | None, target: str, request_id: str) -> Resource | None:
        failure = next((failure for failure in self.failures if failure.operation_type == kind), None)
        if failure is None:
            return None
        self.failures.remove(failure)
        resource = self._begin(kind, zone, target, request_id)
        errors = [{"code": failure.code, "message": failure.message}]
        resource |= {"error": {"errors": errors}, "httpErrorStatusCode": failure.status}
        return resource


def fingerprint(labels: Mapping[str, str]) -> str:
    content = json.dumps(dict(labels), sort_keys=True).encode()
    return base64.b64encode(hashlib.sha256(content).digest()[:8]).decode()


def _check_new(body: Resource, path: str, shelf: Mapping[str, Resource]) -> None:
    name = body.get("name", "")
    if not _NAME.fullmatch(name):
        raise Refused(400, "invalid", f"Invalid value for field 'resource.name': '{name}'.")
    _check_labels(body.get("labels", {}))
    if path in shelf:
        raise Refused(409, "alreadyExists", f"The resource '{path}' already exists")


def _check_labels(labels: Mapping[str, str]) -> None:
    if len(labels) > 64:
        raise Refused(400, "invalid", "Too many labels")
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            raise Refused(400, "invalid", f"Invalid value for field 'labels': '{key}={value}'.")


def _missing(path: str) -> Refused:
    return Refused(404, "notFound", f"The resource '{path}' was not found")
