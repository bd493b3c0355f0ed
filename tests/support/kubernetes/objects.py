"""Nodes, pods and services as the API server writes them, for what is pure. Times are given in seconds before NOW."""

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from gpudev.adapters.kubernetes.cache.object_records import (
    NodeRecord,
    PodRecord,
    ServiceRecord,
    to_node_record,
    to_pod_record,
    to_service_record,
)
from gpudev.adapters.kubernetes.objects import labels
from gpudev.domain.ids import ReservationId
from gpudev.settings import KubernetesSettings

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
SETTINGS = KubernetesSettings()
RID = ReservationId(UUID("12345678-1234-5678-1234-567812345678"))
HOST_KEY = "ssh-ed25519 AAAAC3Nza host"
Object = dict[str, Any]
_numbers = itertools.count(1)


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(kind: str, status: str, since: float = 60, reason: str = "", message: str = "") -> Object:
    found = {"type": kind, "status": status, "lastTransitionTime": ago(since), "reason": reason, "message": message}
    return {key: value for key, value in found.items() if value}


def node(
    name: str = "n1",
    *,
    gpu_type: str | None = "h100",
    instance_type: str | None = None,
    gpus: int = 8,
    ready: str = "True",
    since: float = 60,
    cpu: str = "192",
    memory: str = "2048Gi",
    unschedulable: bool = False,
    taints: list[Object] | None = None,
    addresses: list[tuple[str, str]] | None = None,
) -> Object:
    marks = {"GpuType": gpu_type, "node.kubernetes.io/instance-type": instance_type}
    where = [("InternalIP", "10.0.0.1"), ("Hostname", name)] if addresses is None else addresses
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": str(next(_numbers)),
            "labels": {key: value for key, value in marks.items() if value is not None},
        },
        "spec": {"unschedulable": unschedulable, "taints": taints or []},
        "status": {
            "allocatable": {"cpu": cpu, "memory": memory, "nvidia.com/gpu": str(gpus)},
            "conditions": [condition("Ready", ready, since)],
            "addresses": [{"type": kind, "address": address} for kind, address in where],
        },
    }


def pod(
    name: str = "job-1",
    *,
    node: str | None = "n1",
    namespace: str = "default",
    gpus: int = 1,
    phase: str = "Running",
    deleting: bool = False,
    requests: Object | None = None,
    spec: Object | None = None,
) -> Object:
    amounts = requests or {"nvidia.com/gpu": str(gpus)}
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": str(next(_numbers))}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, **({"deletionTimestamp": ago(1)} if deleting else {})},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "main", "image": "busybox", "resources": {"requests": amounts}}],
            **(spec or {}),
        },
        "status": {"phase": phase},
    }


def waiting(reason: str, message: str = "") -> Object:
    return {"waiting": {"reason": reason, "message": message}}


def running(since: float = 5) -> Object:
    return {"running": {"startedAt": ago(since)}}


def ended(code: int, reason: str = "Error", *, at: float = 30, message: str = "") -> Object:
    return {"terminated": {"exitCode": code, "reason": reason, "finishedAt": ago(at), "message": message}}


def own_pod(
    *,
    rank: int = 0,
    members: int = 1,
    node: str | None = "n1",
    phase: str = "Pending",
    gpus: int = 2,
    init: Object | None = None,
    main: Object | None = None,
    last: Object | None = None,
    conditions: list[Object] | None = None,
    ready: bool = False,
    scheduled: Object | None = None,
    deleting: bool = False,
    rid: ReservationId = RID,
    namespace: str = "gpu-dev",
    **status: Any,
) -> Object:
    """A dev server's pod as far as the given states say it is; without any, only scheduled a minute ago."""
    name = labels.member_name(f"gpu-dev-{rid.hex[:8]}", rank)
    made = pod(name, node=node, namespace=namespace, gpus=gpus, phase=phase, deleting=deleting)
    made["metadata"]["labels"] = {
        labels.MANAGED_BY: labels.MANAGER,
        labels.RESERVATION_ID: str(rid),
        labels.RANK: str(rank),
        labels.MEMBERS: str(members),
    }
    made["metadata"]["annotations"] = {labels.HOST_KEY: HOST_KEY, labels.PLANNED_NODE: node or "n1"}
    made["metadata"]["creationTimestamp"] = ago(60)
    made["spec"]["initContainers"] = [{"name": "setup", "image": "our/init:1"}]
    made["spec"]["containers"][0].update(name="dev", image="pytorch:2")
    said = [scheduled or condition("PodScheduled", "True" if node else "False")]
    said.append(condition("Ready", "True" if ready else "False"))
    made["status"].update(conditions=[*said, *(conditions or [])], **status)
    if init is not None:
        made["status"]["initContainerStatuses"] = [{"name": "setup", "state": init, "ready": "terminated" in init}]
    if main is not None:
        state = {"name": "dev", "state": main, "ready": ready, "lastState": last or {}, "restartCount": 0}
        made["status"]["containerStatuses"] = [state]
    return made


def ready_pod(**more: Any) -> Object:
    return own_pod(phase="Running", init=ended(0, "Completed"), main=running(), ready=True, **more)


def service(port: int | None = 31234, *, rid: ReservationId = RID) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": f"gpu-dev-{rid.hex[:8]}",
            "namespace": "gpu-dev",
            "uid": "uid-service",
            "resourceVersion": str(next(_numbers)),
            "labels": {labels.MANAGED_BY: labels.MANAGER, labels.RESERVATION_ID: str(rid)},
        },
        "spec": {"ports": [{"port": 22, **({"nodePort": port} if port else {})}]},
    }


def node_record(*args: Any, **more: Any) -> NodeRecord:
    return to_node_record(node(*args, **more), SETTINGS.gpu_type_label, SETTINGS.gpu_resource)


def pod_record(made: Object) -> PodRecord:
    record = to_pod_record(made, SETTINGS.namespace, SETTINGS.gpu_resource)
    assert record is not None
    return record


def service_record(made: Object) -> ServiceRecord:
    record = to_service_record(made)
    assert record is not None
    return record


def foreign_pod(name: str, node: str, gpus: int) -> dict[str, object]:
    container = {"name": "main", "image": "example/x:1", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    return {"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [container]}}
