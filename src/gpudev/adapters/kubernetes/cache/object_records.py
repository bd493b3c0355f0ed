"""Small records of Kubernetes objects, and the JSON fields that they need. Pure.

A cache of a thousand nodes and many thousand pods must stay small. A change that does not matter to us (a heartbeat,
a condition of a foreign pod) must give an equal record, so that it counts as no change.

Records contain what the objects contain, without interpretation.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict

from gpudev.adapters.kubernetes.client.resource_kinds import Manifest
from gpudev.adapters.kubernetes.objects import labels
from gpudev.adapters.kubernetes.objects.compute_resources import (
    CpuMemory,
    ResourceRequests,
    parse_allocatable,
    parse_whole_node_resources,
    sum_pod_requests,
)
from gpudev.adapters.kubernetes.objects.pod_manifest import DEV_CONTAINER
from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations.command_exit import CommandExit, parse_command_exit

_ENDED_PHASES = ("Succeeded", "Failed")
_BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")
_INSTANCE_TYPE_LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
_PRODUCT_LABELS = (
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "eks.amazonaws.com/instance-gpu-name",
)
_NODE_BOUND_OWNERS = ("DaemonSet", "Node")
_ZONE_LABELS = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
_MAX_MESSAGE_LENGTH = 600


@dataclass(frozen=True, slots=True)
class NodeRecord:
    name: str
    uid: str
    type_label: str | None
    """Value of the label that names the GPU type; None: the node has no such label."""
    instance_type: str | None
    ready: bool
    ready_since: datetime | None
    """Since when `ready` has its value; None: not reported."""
    cordoned: bool
    taints: tuple[str, ...]
    """Keys of taints that keep pods away."""
    addresses: tuple[tuple[str, str], ...]
    """(kind, address) in the node's order."""
    gpus: int
    allocatable: CpuMemory | None
    """CPU and memory for pods; None: not reported."""
    zone: str | None = None
    whole_node_resources: tuple[tuple[str, str], ...] = ()
    """(resource, amount) of resources that only a dev server with the whole node gets."""
    product: str | None = None
    """Name of its GPUs in labels of NVIDIA, Google or Karpenter."""


@dataclass(frozen=True, slots=True)
class ContainerTermination:
    """How a container ended."""

    exit_code: int
    reason: str
    signal: int = 0
    message: str = ""
    finished_at: datetime | None = None
    command_exit: CommandExit | None = None
    """How the reservation's command ended, if the container ended with it."""


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    name: str
    image: str
    ready: bool = False
    running_since: datetime | None = None
    waiting_reason: str | None = None
    """Why it waits, as the kubelet names it; None: it does not wait."""
    waiting_message: str = ""
    termination: ContainerTermination | None = None
    last_termination: ContainerTermination | None = None
    restarts: int = 0
    has_status: bool = False
    """The kubelet has reported a state for it."""
    is_sidecar: bool = False
    """An init container that keeps running beside the others."""


@dataclass(frozen=True, slots=True)
class ConditionRecord:
    is_true: bool
    reason: str
    message: str
    since: datetime | None


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """What is kept only of our own pods."""

    reservation_id: ReservationId
    rank: int
    members: int
    planned_node: str | None
    host_key: str | None
    phase: str
    reason: str
    message: str
    created_at: datetime | None
    ready: bool
    scheduled: ConditionRecord | None
    sandbox: ConditionRecord | None
    """Whether network and volumes are ready; None: not reported."""
    disruption: ConditionRecord | None
    """Why the cluster is ending it; None: it is not."""
    init_containers: tuple[ContainerRecord, ...]
    containers: tuple[ContainerRecord, ...]
    has_personalization: bool = False
    """Its owner's dotfiles or start-up script run in it."""

    @property
    def dev_container(self) -> ContainerRecord | None:
        """The dev server itself. Admission webhooks may have added other containers."""
        return next((container for container in self.containers if container.name == DEV_CONTAINER), None)

    @property
    def is_serving(self) -> bool:
        return self.ready or (self.dev_container is not None and self.dev_container.ready)


@dataclass(frozen=True, slots=True)
class PodRecord:
    namespace: str
    name: str
    uid: str
    node: str | None
    requests: ResourceRequests
    has_ended: bool
    """It has ended and holds no resources."""
    is_deleting: bool
    member: MemberRecord | None = None
    is_node_bound: bool = False
    """It belongs to its node: a pod of a DaemonSet, or a static pod of the kubelet."""

    @property
    def is_over(self) -> bool:
        """For our own pods: the dev server has ended, even if an added container still runs and holds resources."""
        dev = self.member.dev_container if self.member is not None else None
        return self.has_ended or (dev is not None and dev.termination is not None)


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    namespace: str
    name: str
    uid: str
    reservation_id: ReservationId
    node_port: int | None
    """Of its first port that has one."""
    host_key: str | None


@dataclass(frozen=True, slots=True)
class PersistentVolumeRecord:
    """The PersistentVolume of a disk while a reservation uses it."""

    name: str
    uid: str
    reservation_id: ReservationId


@dataclass(frozen=True, slots=True)
class GonePod:
    """A pod of ours that disappeared."""

    pod: PodRecord
    """As last observed."""
    at: datetime
    was_observed: bool
    """The watch delivered its deletion; otherwise it was missing in a later list."""


@dataclass(frozen=True, slots=True)
class ServerParts:
    """All cached objects of one dev server."""

    reservation_id: ReservationId
    pods: Sequence[PodRecord]
    gone: Sequence[GonePod] = ()
    services: Sequence[ServiceRecord] = ()
    volumes: Sequence[PersistentVolumeRecord] = ()


def to_node_record(node: Manifest, type_label: str, gpu_resource: str, unshared: Iterable[str] = ()) -> NodeRecord:
    metadata, spec, status = node["metadata"], node.get("spec", {}), node.get("status", {})
    node_labels: Mapping[str, str] = metadata.get("labels") or {}
    ready = _find_condition(status, "Ready")
    allocatable = status.get("allocatable") or {}
    return NodeRecord(
        name=sys.intern(metadata["name"]),
        uid=metadata["uid"],
        type_label=node_labels.get(type_label),
        instance_type=next((node_labels[key] for key in _INSTANCE_TYPE_LABELS if key in node_labels), None),
        ready=ready is not None and ready.is_true,
        ready_since=None if ready is None else ready.since,
        cordoned=bool(spec.get("unschedulable")),
        taints=tuple(taint["key"] for taint in spec.get("taints") or () if taint.get("effect") in _BLOCKING_EFFECTS),
        addresses=tuple((address["type"], address["address"]) for address in status.get("addresses") or ()),
        gpus=_parse_count(allocatable.get(gpu_resource)),
        allocatable=parse_allocatable(allocatable),
        zone=next((node_labels[key] for key in _ZONE_LABELS if node_labels.get(key)), None),
        whole_node_resources=parse_whole_node_resources(allocatable, unshared),
        product=next((node_labels[key] for key in _PRODUCT_LABELS if node_labels.get(key)), None),
    )


def to_pod_record(pod: Manifest, namespace: str, gpu_resource: str) -> PodRecord | None:
    """`namespace`: ours. Pods of another installation in this cluster are foreign like any others.
    None: a foreign pod that has ended and holds no resources."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    is_in_namespace = metadata["namespace"] == namespace
    reservation_id = labels.find_reservation_id(metadata.get("labels")) if is_in_namespace else None
    ended = status.get("phase") in _ENDED_PHASES
    if ended and reservation_id is None:
        return None
    node = spec.get("nodeName")
    return PodRecord(
        namespace=sys.intern(metadata["namespace"]),
        name=metadata["name"],
        uid=metadata["uid"],
        node=sys.intern(node) if node else None,
        requests=sum_pod_requests(spec, gpu_resource),
        has_ended=ended,
        is_deleting="deletionTimestamp" in metadata,
        member=None if reservation_id is None else _to_member_record(reservation_id, metadata, spec, status),
        is_node_bound=reservation_id is None and _is_node_bound(metadata),
    )


def _is_node_bound(metadata: Manifest) -> bool:
    return any(
        owner.get("controller") and owner["kind"] in _NODE_BOUND_OWNERS
        for owner in metadata.get("ownerReferences") or ()
    )


def to_service_record(service: Manifest) -> ServiceRecord | None:
    """None: it belongs to no reservation."""
    metadata = service["metadata"]
    reservation_id = labels.find_reservation_id(metadata.get("labels"))
    if reservation_id is None:
        return None
    ports = service.get("spec", {}).get("ports") or ()
    return ServiceRecord(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        reservation_id=reservation_id,
        node_port=next((port["nodePort"] for port in ports if port.get("nodePort")), None),
        host_key=(metadata.get("annotations") or {}).get(labels.HOST_KEY),
    )


def to_persistent_volume_record(volume: Manifest, namespace: str) -> PersistentVolumeRecord | None:
    """`namespace`: ours. None: it belongs to no reservation, or to one of another installation in this cluster."""
    metadata = volume["metadata"]
    reservation_id = labels.find_reservation_id(metadata.get("labels"))
    if reservation_id is None or volume["spec"].get("claimRef", {}).get("namespace") != namespace:
        return None
    return PersistentVolumeRecord(metadata["name"], metadata["uid"], reservation_id)


def _to_member_record(
    reservation_id: ReservationId, metadata: Manifest, spec: Manifest, status: Mapping[str, Any]
) -> MemberRecord:
    pod_labels, annotations = metadata["labels"], metadata.get("annotations") or {}
    ready = _find_condition(status, "Ready")
    return MemberRecord(
        reservation_id=reservation_id,
        rank=_parse_count(pod_labels.get(labels.RANK)),
        members=max(1, _parse_count(pod_labels.get(labels.MEMBERS))),
        planned_node=annotations.get(labels.PLANNED_NODE),
        host_key=annotations.get(labels.HOST_KEY),
        phase=status.get("phase", "Pending"),
        reason=status.get("reason", ""),
        message=_truncate(status.get("message", "")),
        created_at=parse_time(metadata.get("creationTimestamp")),
        ready=ready is not None and ready.is_true,
        scheduled=_find_condition(status, "PodScheduled"),
        sandbox=_find_condition(status, "PodReadyToStartContainers"),
        disruption=_find_condition(status, "DisruptionTarget"),
        init_containers=_to_container_records(spec.get("initContainers"), status.get("initContainerStatuses")),
        containers=_to_container_records(spec.get("containers"), status.get("containerStatuses")),
        has_personalization=labels.PERSONALIZATION in annotations,
    )


def _to_container_records(
    specified: Sequence[Manifest] | None, statuses: Iterable[Manifest] | None
) -> tuple[ContainerRecord, ...]:
    by_name = {status["name"]: status for status in statuses or ()}
    return tuple(_to_container_record(container, by_name.get(container["name"])) for container in specified or ())


def _to_container_record(specified: Manifest, status: Manifest | None) -> ContainerRecord:
    image, is_sidecar = specified.get("image", ""), specified.get("restartPolicy") == "Always"
    if status is None:
        return ContainerRecord(specified["name"], image, is_sidecar=is_sidecar)
    state: Mapping[str, Any] = status.get("state") or {}
    waiting = state.get("waiting")
    return ContainerRecord(
        name=specified["name"],
        image=image,
        ready=bool(status.get("ready")),
        running_since=parse_time(state.get("running", {}).get("startedAt")),
        waiting_reason=None if waiting is None else waiting.get("reason", ""),
        waiting_message=_truncate((waiting or {}).get("message", "")),
        termination=_to_termination(state.get("terminated")),
        last_termination=_to_termination((status.get("lastState") or {}).get("terminated")),
        restarts=status.get("restartCount", 0),
        has_status=True,
        is_sidecar=is_sidecar,
    )


def _to_termination(terminated: Manifest | None) -> ContainerTermination | None:
    if terminated is None:
        return None
    return ContainerTermination(
        exit_code=terminated.get("exitCode", 0),
        reason=terminated.get("reason", ""),
        signal=terminated.get("signal", 0),
        message=_truncate(terminated.get("message", "")),
        finished_at=parse_time(terminated.get("finishedAt")),
        command_exit=parse_command_exit(terminated.get("message", "")),
    )


def _find_condition(status: Mapping[str, Any], name: str) -> ConditionRecord | None:
    for condition in status.get("conditions") or ():
        if condition["type"] == name:
            return ConditionRecord(
                is_true=condition["status"] == "True",
                reason=condition.get("reason") or "",
                message=_truncate(condition.get("message") or ""),
                since=parse_time(condition.get("lastTransitionTime")),
            )
    return None


def parse_time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _parse_count(text: str | None) -> int:
    """Counts are written as text; an invalid one counts as 0."""
    try:
        return int(text or 0)
    except ValueError:
        return 0


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_MESSAGE_LENGTH else text[:_MAX_MESSAGE_LENGTH] + "…"


# JSON fields of nodes and pods to decode in listings of many thousands; the rest is skipped.
# Every field that the records above and compute_resources read must be named here; a test compares.


StringMap = dict[str, str]
ResourceAmounts = dict[str, Any]


class OwnerReferenceFields(TypedDict, total=False):
    kind: str
    controller: bool | None


class MetadataFields(TypedDict, total=False):
    name: str
    namespace: str
    uid: str
    resourceVersion: str
    labels: StringMap | None
    annotations: StringMap | None
    creationTimestamp: str | None
    deletionTimestamp: str | None
    ownerReferences: list[OwnerReferenceFields] | None


class ConditionFields(TypedDict, total=False):
    type: str
    status: str
    reason: str | None
    message: str | None
    lastTransitionTime: str | None


class ResourceFields(TypedDict, total=False):
    limits: ResourceAmounts | None
    requests: ResourceAmounts | None


class ContainerFields(TypedDict, total=False):
    name: str
    image: str
    restartPolicy: str
    resources: ResourceFields | None


class PodSpecFields(TypedDict, total=False):
    nodeName: str | None
    containers: list[ContainerFields] | None
    initContainers: list[ContainerFields] | None
    resources: ResourceFields | None
    overhead: ResourceAmounts


class PodStatusFields(TypedDict, total=False):
    phase: str
    reason: str
    message: str
    conditions: list[ConditionFields] | None
    containerStatuses: list[dict[str, Any]] | None
    initContainerStatuses: list[dict[str, Any]] | None


class PodFields(TypedDict, total=False):
    metadata: MetadataFields
    spec: PodSpecFields
    status: PodStatusFields | None


class TaintFields(TypedDict, total=False):
    key: str
    effect: str


class NodeAddressFields(TypedDict):
    type: str
    address: str


class NodeSpecFields(TypedDict, total=False):
    unschedulable: bool
    taints: list[TaintFields] | None


class NodeStatusFields(TypedDict, total=False):
    conditions: list[ConditionFields] | None
    allocatable: ResourceAmounts | None
    addresses: list[NodeAddressFields] | None


class NodeFields(TypedDict, total=False):
    metadata: MetadataFields
    spec: NodeSpecFields
    status: NodeStatusFields
