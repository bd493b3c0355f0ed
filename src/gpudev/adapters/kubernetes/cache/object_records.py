"""From the objects on the wire to the little that facts need: pure. A mirror of a thousand nodes and many thousand
pods must stay small, and a change that means nothing to us (a heartbeat, a foreign pod's condition) must look like no
change at all: two records of the same meaning are equal.

It says what is there, not what it means.
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
    """What the label that names the GPU type says."""
    instance_type: str | None
    ready: bool
    ready_since: datetime | None
    """Since when it has been ready, or has not been."""
    cordoned: bool
    taints: tuple[str, ...]
    """Keys of those that keep pods away."""
    addresses: tuple[tuple[str, str], ...]
    """(kind, address) in the node's order."""
    gpus: int
    allocatable: CpuMemory | None
    """Processors and memory for pods; None where the node has not said."""
    zone: str | None = None
    whole_node_resources: tuple[tuple[str, str], ...] = ()
    """(resource, amount) of what only who has the whole node can be given."""
    product: str | None = None
    """What others' labels call its GPUs."""


@dataclass(frozen=True, slots=True)
class ContainerTermination:
    """How a container ended."""

    exit_code: int
    reason: str
    signal: int = 0
    message: str = ""
    finished_at: datetime | None = None
    command_exit: CommandExit | None = None
    """It ended with the command it was reserved for."""


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    name: str
    image: str
    ready: bool = False
    running_since: datetime | None = None
    waiting_reason: str | None = None
    """Why it waits, in the kubelet's word; None: it does not."""
    waiting_message: str = ""
    termination: ContainerTermination | None = None
    last_termination: ContainerTermination | None = None
    restarts: int = 0
    has_status: bool = False
    """It has a state at all: the kubelet has looked at it."""
    is_sidecar: bool = False
    """An init container that is to go on running beside the others."""


@dataclass(frozen=True, slots=True)
class ConditionRecord:
    is_true: bool
    reason: str
    message: str
    since: datetime | None


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """What is kept of our own pods only."""

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
    """Whether network and volumes are there; None where the kubelet does not say."""
    disruption: ConditionRecord | None
    """Why the cluster ends it."""
    init_containers: tuple[ContainerRecord, ...]
    containers: tuple[ContainerRecord, ...]
    has_personalization: bool = False
    """Its owner brings something that is run in it."""

    @property
    def dev_container(self) -> ContainerRecord | None:
        """The dev server itself: other people's webhooks may have added containers of their own."""
        return next((one for one in self.containers if one.name == DEV_CONTAINER), None)

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
    """It ran and holds nothing any more."""
    is_deleting: bool
    member: MemberRecord | None = None
    is_node_bound: bool = False
    """It belongs to its node: a DaemonSet's, or one that the kubelet runs by itself."""

    @property
    def is_over(self) -> bool:
        """Of one of ours: nobody is served any more, even if something that was added still runs and holds all."""
        dev = self.member.dev_container if self.member is not None else None
        return self.has_ended or (dev is not None and dev.termination is not None)


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    namespace: str
    name: str
    uid: str
    reservation_id: ReservationId
    node_port: int | None
    """The first port's."""
    host_key: str | None


@dataclass(frozen=True, slots=True)
class PersistentVolumeRecord:
    """What stands for a disk's volume while a reservation has it."""

    name: str
    uid: str
    reservation_id: ReservationId


@dataclass(frozen=True, slots=True)
class GonePod:
    """A pod of ours that is no more."""

    pod: PodRecord
    """As last seen."""
    at: datetime
    was_observed: bool
    """Its end was told by the watch; otherwise it was missing when we looked again."""


@dataclass(frozen=True, slots=True)
class ServerParts:
    """Everything the cluster has of one dev server."""

    reservation_id: ReservationId
    pods: Sequence[PodRecord]
    gone: Sequence[GonePod] = ()
    services: Sequence[ServiceRecord] = ()
    volumes: Sequence[PersistentVolumeRecord] = ()


def to_node_record(node: Manifest, type_label: str, gpu_resource: str, unshared: Iterable[str] = ()) -> NodeRecord:
    metadata, spec, status = node["metadata"], node.get("spec", {}), node.get("status", {})
    marks: Mapping[str, str] = metadata.get("labels") or {}
    ready = _find_condition(status, "Ready")
    allocatable = status.get("allocatable") or {}
    return NodeRecord(
        name=sys.intern(metadata["name"]),
        uid=metadata["uid"],
        type_label=marks.get(type_label),
        instance_type=next((marks[key] for key in _INSTANCE_TYPE_LABELS if key in marks), None),
        ready=ready is not None and ready.is_true,
        ready_since=None if ready is None else ready.since,
        cordoned=bool(spec.get("unschedulable")),
        taints=tuple(taint["key"] for taint in spec.get("taints") or () if taint.get("effect") in _BLOCKING_EFFECTS),
        addresses=tuple((one["type"], one["address"]) for one in status.get("addresses") or ()),
        gpus=_parse_count(allocatable.get(gpu_resource)),
        allocatable=parse_allocatable(allocatable),
        zone=next((marks[key] for key in _ZONE_LABELS if marks.get(key)), None),
        whole_node_resources=parse_whole_node_resources(allocatable, unshared),
        product=next((marks[key] for key in _PRODUCT_LABELS if marks.get(key)), None),
    )


def to_pod_record(pod: Manifest, namespace: str, gpu_resource: str) -> PodRecord | None:
    """`namespace`: ours. What another installation runs elsewhere in this cluster is as foreign as anybody's.
    None: a foreign pod that holds nothing and never will again."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    is_inside = metadata["namespace"] == namespace
    reservation_id = labels.find_reservation_id(metadata.get("labels")) if is_inside else None
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
        one.get("controller") and one["kind"] in _NODE_BOUND_OWNERS for one in metadata.get("ownerReferences") or ()
    )


def to_service_record(service: Manifest) -> ServiceRecord | None:
    """None: not made for a reservation."""
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
    """`namespace`: ours. None: not made for a reservation, or for one of another installation in this cluster."""
    metadata = volume["metadata"]
    reservation_id = labels.find_reservation_id(metadata.get("labels"))
    if reservation_id is None or volume["spec"].get("claimRef", {}).get("namespace") != namespace:
        return None
    return PersistentVolumeRecord(metadata["name"], metadata["uid"], reservation_id)


def _to_member_record(
    reservation_id: ReservationId, metadata: Manifest, spec: Manifest, status: Mapping[str, Any]
) -> MemberRecord:
    marks, notes = metadata["labels"], metadata.get("annotations") or {}
    ready = _find_condition(status, "Ready")
    return MemberRecord(
        reservation_id=reservation_id,
        rank=_parse_count(marks.get(labels.RANK)),
        members=max(1, _parse_count(marks.get(labels.MEMBERS))),
        planned_node=notes.get(labels.PLANNED_NODE),
        host_key=notes.get(labels.HOST_KEY),
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
        has_personalization=labels.PERSONALIZATION in notes,
    )


def _to_container_records(
    specified: Sequence[Manifest] | None, statuses: Iterable[Manifest] | None
) -> tuple[ContainerRecord, ...]:
    by_name = {status["name"]: status for status in statuses or ()}
    return tuple(_to_container_record(one, by_name.get(one["name"])) for one in specified or ())


def _to_container_record(specified: Manifest, status: Manifest | None) -> ContainerRecord:
    image, stays = specified.get("image", ""), specified.get("restartPolicy") == "Always"
    if status is None:
        return ContainerRecord(specified["name"], image, is_sidecar=stays)
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
        is_sidecar=stays,
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
    """Counts are written as text; one that makes no sense counts for nothing."""
    try:
        return int(text or 0)
    except ValueError:
        return 0


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_MESSAGE_LENGTH else text[:_MAX_MESSAGE_LENGTH] + "…"


# What of nodes and pods is read at all, for listings of many thousands: the rest of their JSON is skipped instead of
# being made into objects that nobody looks at.
#
# Whatever `trimming` and `demand` ask for has to be named here; a test compares.


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
