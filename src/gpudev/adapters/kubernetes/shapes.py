"""What of nodes and pods is read at all, for listings of many thousands: the rest of their JSON is skipped instead of
being made into objects that nobody looks at.

Whatever `trimming` and `demand` ask for has to be named here; a test compares.
"""

from typing import Any, TypedDict

Labels = dict[str, str]
Amounts = dict[str, Any]


class Owner(TypedDict, total=False):
    kind: str
    controller: bool | None


class Metadata(TypedDict, total=False):
    name: str
    namespace: str
    uid: str
    resourceVersion: str
    labels: Labels | None
    annotations: Labels | None
    creationTimestamp: str | None
    deletionTimestamp: str | None
    ownerReferences: list[Owner] | None


class Condition(TypedDict, total=False):
    type: str
    status: str
    reason: str | None
    message: str | None
    lastTransitionTime: str | None


class Resources(TypedDict, total=False):
    limits: Amounts | None
    requests: Amounts | None


class Container(TypedDict, total=False):
    name: str
    image: str
    restartPolicy: str
    resources: Resources | None


class PodSpec(TypedDict, total=False):
    nodeName: str | None
    containers: list[Container] | None
    initContainers: list[Container] | None
    resources: Resources | None
    overhead: Amounts


class PodStatus(TypedDict, total=False):
    phase: str
    reason: str
    message: str
    conditions: list[Condition] | None
    containerStatuses: list[dict[str, Any]] | None
    initContainerStatuses: list[dict[str, Any]] | None


class Pod(TypedDict, total=False):
    metadata: Metadata
    spec: PodSpec
    status: PodStatus | None


class Taint(TypedDict, total=False):
    key: str
    effect: str


class Address(TypedDict):
    type: str
    address: str


class NodeSpec(TypedDict, total=False):
    unschedulable: bool
    taints: list[Taint] | None


class NodeStatus(TypedDict, total=False):
    conditions: list[Condition] | None
    allocatable: Amounts | None
    addresses: list[Address] | None


class Node(TypedDict, total=False):
    metadata: Metadata
    spec: NodeSpec
    status: NodeStatus
