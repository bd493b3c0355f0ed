"""From the objects on the wire to the little that facts need: pure. A mirror of a thousand nodes and many thousand
pods must stay small, and a change that means nothing to us (a heartbeat, a foreign pod's condition) must look like no
change at all: two records of the same meaning are equal.

It says what is there, not what it means.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpudev.adapters.kubernetes.client.resource_kinds import Manifest
from gpudev.adapters.kubernetes.objects import labels
from gpudev.adapters.kubernetes.objects.compute_resources import Demand, demand_of
from gpudev.adapters.kubernetes.objects.pod_manifest import CONTAINER
from gpudev.adapters.kubernetes.sizing import Room, room_of_node, whole_only
from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations.command_exit import RunEnd, parse_run_end

_ENDED = ("Succeeded", "Failed")
_CLOSING = ("NoSchedule", "NoExecute")
_INSTANCE_TYPE = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
_PRODUCT = (
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "eks.amazonaws.com/instance-gpu-name",
)
_STAYING = ("DaemonSet", "Node")
_ZONE = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
_LONGEST_MESSAGE = 600


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
    room: Room | None
    """Processors and memory for pods; None where the node has not said."""
    zone: str | None = None
    whole_only: tuple[tuple[str, str], ...] = ()
    """(resource, amount) of what only who has the whole node can be given."""
    product: str | None = None
    """What others' labels call its GPUs."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a container ended."""

    exit_code: int
    reason: str
    signal: int = 0
    message: str = ""
    at: datetime | None = None
    run_end: RunEnd | None = None
    """It ended with the command it was reserved for."""


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    name: str
    image: str
    ready: bool = False
    running_since: datetime | None = None
    waiting: str | None = None
    """Why it waits, in the kubelet's word; None: it does not."""
    waiting_message: str = ""
    ended: Ending | None = None
    last_ended: Ending | None = None
    restarts: int = 0
    started: bool = False
    """It has a state at all: the kubelet has looked at it."""
    stays: bool = False
    """An init container that is to go on running beside the others."""


@dataclass(frozen=True, slots=True)
class ConditionRecord:
    holds: bool
    reason: str
    message: str
    since: datetime | None


@dataclass(frozen=True, slots=True)
class OwnRecord:
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
    has_setup: bool = False
    """Its owner brings something that is run in it."""

    @property
    def dev(self) -> ContainerRecord | None:
        """The dev server itself: other people's webhooks may have added containers of their own."""
        return next((one for one in self.containers if one.name == CONTAINER), None)

    @property
    def is_serving(self) -> bool:
        return self.ready or (self.dev is not None and self.dev.ready)


@dataclass(frozen=True, slots=True)
class PodRecord:
    namespace: str
    name: str
    uid: str
    node: str | None
    demand: Demand
    ended: bool
    """It ran and holds nothing any more."""
    deleting: bool
    own: OwnRecord | None = None
    stays: bool = False
    """It belongs to its node: a DaemonSet's, or one that the kubelet runs by itself."""

    @property
    def is_over(self) -> bool:
        """Of one of ours: nobody is served any more, even if something that was added still runs and holds all."""
        dev = self.own.dev if self.own is not None else None
        return self.ended or (dev is not None and dev.ended is not None)


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
class VolumeRecord:
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
    was_seen: bool
    """Its end was told by the watch; otherwise it was missing when we looked again."""


@dataclass(frozen=True, slots=True)
class ServerParts:
    """Everything the cluster has of one dev server."""

    reservation_id: ReservationId
    pods: Sequence[PodRecord]
    gone: Sequence[GonePod] = ()
    services: Sequence[ServiceRecord] = ()
    volumes: Sequence[VolumeRecord] = ()


def trim_node(node: Manifest, type_label: str, gpu_resource: str, unshared: Iterable[str] = ()) -> NodeRecord:
    metadata, spec, status = node["metadata"], node.get("spec", {}), node.get("status", {})
    marks: Mapping[str, str] = metadata.get("labels") or {}
    ready = _condition(status, "Ready")
    allocatable = status.get("allocatable") or {}
    return NodeRecord(
        name=sys.intern(metadata["name"]),
        uid=metadata["uid"],
        type_label=marks.get(type_label),
        instance_type=next((marks[key] for key in _INSTANCE_TYPE if key in marks), None),
        ready=ready is not None and ready.holds,
        ready_since=None if ready is None else ready.since,
        cordoned=bool(spec.get("unschedulable")),
        taints=tuple(taint["key"] for taint in spec.get("taints") or () if taint.get("effect") in _CLOSING),
        addresses=tuple((one["type"], one["address"]) for one in status.get("addresses") or ()),
        gpus=_whole(allocatable.get(gpu_resource)),
        room=room_of_node(allocatable),
        zone=next((marks[key] for key in _ZONE if marks.get(key)), None),
        whole_only=whole_only(allocatable, unshared),
        product=next((marks[key] for key in _PRODUCT if marks.get(key)), None),
    )


def trim_pod(pod: Manifest, namespace: str, gpu_resource: str) -> PodRecord | None:
    """`namespace`: ours. What another installation runs elsewhere in this cluster is as foreign as anybody's.
    None: a foreign pod that holds nothing and never will again."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    is_inside = metadata["namespace"] == namespace
    reservation_id = labels.find_reservation_id(metadata.get("labels")) if is_inside else None
    ended = status.get("phase") in _ENDED
    if ended and reservation_id is None:
        return None
    node = spec.get("nodeName")
    return PodRecord(
        namespace=sys.intern(metadata["namespace"]),
        name=metadata["name"],
        uid=metadata["uid"],
        node=sys.intern(node) if node else None,
        demand=demand_of(spec, gpu_resource),
        ended=ended,
        deleting="deletionTimestamp" in metadata,
        own=None if reservation_id is None else _trim_own(reservation_id, metadata, spec, status),
        stays=reservation_id is None and _stays(metadata),
    )


def _stays(metadata: Manifest) -> bool:
    return any(one.get("controller") and one["kind"] in _STAYING for one in metadata.get("ownerReferences") or ())


def trim_service(service: Manifest) -> ServiceRecord | None:
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


def trim_volume(volume: Manifest, namespace: str) -> VolumeRecord | None:
    """`namespace`: ours. None: not made for a reservation, or for one of another installation in this cluster."""
    metadata = volume["metadata"]
    reservation_id = labels.find_reservation_id(metadata.get("labels"))
    if reservation_id is None or volume["spec"].get("claimRef", {}).get("namespace") != namespace:
        return None
    return VolumeRecord(metadata["name"], metadata["uid"], reservation_id)


def _trim_own(
    reservation_id: ReservationId, metadata: Manifest, spec: Manifest, status: Mapping[str, Any]
) -> OwnRecord:
    marks, notes = metadata["labels"], metadata.get("annotations") or {}
    ready = _condition(status, "Ready")
    return OwnRecord(
        reservation_id=reservation_id,
        rank=_whole(marks.get(labels.RANK)),
        members=max(1, _whole(marks.get(labels.MEMBERS))),
        planned_node=notes.get(labels.PLANNED_NODE),
        host_key=notes.get(labels.HOST_KEY),
        phase=status.get("phase", "Pending"),
        reason=status.get("reason", ""),
        message=_short(status.get("message", "")),
        created_at=read_time(metadata.get("creationTimestamp")),
        ready=ready is not None and ready.holds,
        scheduled=_condition(status, "PodScheduled"),
        sandbox=_condition(status, "PodReadyToStartContainers"),
        disruption=_condition(status, "DisruptionTarget"),
        init_containers=_containers(spec.get("initContainers"), status.get("initContainerStatuses")),
        containers=_containers(spec.get("containers"), status.get("containerStatuses")),
        has_setup=labels.SETUP in notes,
    )


def _containers(
    specified: Sequence[Manifest] | None, statuses: Iterable[Manifest] | None
) -> tuple[ContainerRecord, ...]:
    by_name = {status["name"]: status for status in statuses or ()}
    return tuple(_container(one, by_name.get(one["name"])) for one in specified or ())


def _container(specified: Manifest, status: Manifest | None) -> ContainerRecord:
    image, stays = specified.get("image", ""), specified.get("restartPolicy") == "Always"
    if status is None:
        return ContainerRecord(specified["name"], image, stays=stays)
    state: Mapping[str, Any] = status.get("state") or {}
    waiting = state.get("waiting")
    return ContainerRecord(
        name=specified["name"],
        image=image,
        ready=bool(status.get("ready")),
        running_since=read_time(state.get("running", {}).get("startedAt")),
        waiting=None if waiting is None else waiting.get("reason", ""),
        waiting_message=_short((waiting or {}).get("message", "")),
        ended=_ending(state.get("terminated")),
        last_ended=_ending((status.get("lastState") or {}).get("terminated")),
        restarts=status.get("restartCount", 0),
        started=True,
        stays=stays,
    )


def _ending(terminated: Manifest | None) -> Ending | None:
    if terminated is None:
        return None
    return Ending(
        exit_code=terminated.get("exitCode", 0),
        reason=terminated.get("reason", ""),
        signal=terminated.get("signal", 0),
        message=_short(terminated.get("message", "")),
        at=read_time(terminated.get("finishedAt")),
        run_end=parse_run_end(terminated.get("message", "")),
    )


def _condition(status: Mapping[str, Any], name: str) -> ConditionRecord | None:
    for condition in status.get("conditions") or ():
        if condition["type"] == name:
            return ConditionRecord(
                holds=condition["status"] == "True",
                reason=condition.get("reason") or "",
                message=_short(condition.get("message") or ""),
                since=read_time(condition.get("lastTransitionTime")),
            )
    return None


def read_time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _whole(text: str | None) -> int:
    """Counts are written as text; one that makes no sense counts for nothing."""
    try:
        return int(text or 0)
    except ValueError:
        return 0


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + "…"
