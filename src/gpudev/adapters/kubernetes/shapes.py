"""What of nodes and pods is read at all, for listings of many thousands: the rest of their JSON is skipped instead of
being made into objects that nobody looks at.

Whatever `trimming` and `demand` ask for has to be named here; a test compares.
"""

from typing import Any, TypedDict

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
