"""Why a pod of ours failed, or its placement was rejected. Pure, but for one counter.

Silence is not a failure: a node that does not answer keeps its pods until it has been silent for long, or until the
cluster has given them up.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from prometheus_client import Counter

from gpudev.adapters.kubernetes.cache.object_records import (
    ContainerRecord,
    ContainerTermination,
    MemberRecord,
    NodeRecord,
    PodRecord,
)
from gpudev.settings import KubernetesSettings

_UNUSABLE_IMAGE_REASONS = ("InvalidImageName", "ErrImageNeverPull")
_PULL_FAILURE_REASONS = (
    "ErrImagePull",
    "ImagePullBackOff",
    "RegistryUnavailable",
    "ImageInspectError",
    "SignatureValidationFailed",
)
_MISSING_IMAGE_MESSAGES = (
    "not found",
    "manifest unknown",
    "name unknown",
    "repository does not exist",
    "pull access denied",
    "unauthorized",
    "authentication required",
    "forbidden",
    "no match for platform",
)
"""Messages of registries after which another attempt will not help."""
_START_FAILURE_REASONS = ("CreateContainerError", "RunContainerError", "StartError", "ContainerCannotRun")
_SIGNAL_EXIT_CODE_BASE = 128


@dataclass(frozen=True, slots=True)
class PodFailure:
    reason: str
    container: str | None = None
    """The container whose crash log has details; None: there is no log."""


def find_pod_failure(
    pod: PodRecord, own: MemberRecord, node: NodeRecord | None, now: datetime, settings: KubernetesSettings
) -> PodFailure | None:
    """None: it may still run. `node`: the pod's node; None when it has none or the node is gone."""
    if pod.has_ended:
        return _explain_end(pod, own, node)
    if pod.node is not None and node is None:
        return PodFailure(f"its node {pod.node} is gone")
    if pod.is_over and not pod.is_deleting:
        return _explain_end(pod, own, node)
    if pod.is_deleting:
        return explain_deletion(pod, own, node)
    if is_on_wrong_node(pod, own):
        return PodFailure(
            f"its pod is on {pod.node} instead of {own.planned_node}: something in the cluster changed the pod"
        )
    if node is not None and not node.ready and _has_lasted(node.ready_since, now, settings.node_lost_after):
        return PodFailure(f"its node {node.name} was lost: it has not answered since {_format_time(node.ready_since)}")
    if pod.node is None:
        return _find_scheduling_failure(own, now, settings.unschedulable_after)
    return _find_start_failure(own, now, settings.image_pull_patience)


def explain_deletion(pod: PodRecord, own: MemberRecord, node: NodeRecord | None) -> PodFailure:
    """For a pod that is being deleted, or was deleted, and not by us."""
    if pod.node is not None and (node is None or not node.ready):
        return PodFailure(f"its node {pod.node} was lost" if node is not None else f"its node {pod.node} is gone")
    place = f" on {pod.node}" if pod.node is not None else ""
    if own.disruption is None or not own.disruption.is_true:
        return PodFailure(f"its pod{place} was deleted from outside gpu-dev")
    evicted, detail = f"it was evicted from {pod.node or 'its node'}", _detail_suffix(own.disruption.message)
    match own.disruption.reason:
        case "DeletionByTaintManager":
            return PodFailure(f"{evicted}: the node was tainted{detail}")
        case "EvictionByEvictionAPI":
            return PodFailure(f"{evicted}: the node is being drained{detail}")
        case "PreemptionByScheduler":
            return PodFailure(f"it was preempted{place} by a pod of higher priority")
        case "DeletionByPodGC":
            return PodFailure(f"its node {pod.node} is gone" if pod.node is not None else "its node is gone")
        case other:
            return PodFailure(f"{evicted} ({other}){detail}")


def _explain_end(pod: PodRecord, own: MemberRecord, node: NodeRecord | None) -> PodFailure:
    """The most specific reason first: what the cluster did to the pod, then how its containers ended."""
    match own.reason:
        case "Evicted":
            return PodFailure(
                f"it was evicted from {pod.node}{_detail_suffix(own.message)}", _find_first_with_status(_dev_first(own))
            )
        case "NodeLost":
            return PodFailure(f"its node {pod.node} was lost")
        case "Terminated" | "NodeShutdown" | "Shutdown":
            return PodFailure(f"its node {pod.node} was shut down{_detail_suffix(own.message)}")
        case "DeadlineExceeded":
            return PodFailure(
                f"the cluster ended it: its time limit was reached{_detail_suffix(own.message)}",
                _find_first_with_status(_dev_first(own)),
            )
        case "Preempting":
            return PodFailure(f"it was preempted on {pod.node} by a more important pod")
        case reason if reason and not any(container.termination for container in own.containers):
            # The kubelet rejected it: no free GPU, or a device plugin that failed.
            return PodFailure(f"the node {pod.node} rejected it: {reason}{_detail_suffix(own.message)}")
    if node is None and pod.node is not None:
        return PodFailure(f"its node {pod.node} is gone")
    if own.disruption is not None and own.disruption.is_true and own.disruption.reason != "TerminationByKubelet":
        return explain_deletion(pod, own, node)
    for container in own.init_containers:
        if container.termination is not None and container.termination.exit_code != 0:
            return PodFailure(
                f"its init container failed: {_describe_termination(container.termination)}", container.name
            )
    for container in _dev_first(own):
        if container.termination is not None:
            return PodFailure(_describe_termination(container.termination), container.name)
    return PodFailure(
        f"it ended{_detail_suffix(own.message)}" if own.message else "it ended, and the cluster gives no reason"
    )


def _find_start_failure(own: MemberRecord, now: datetime, patience: timedelta) -> PodFailure | None:
    for container in _required_containers(own):
        reason, detail = container.waiting_reason, _detail_suffix(container.waiting_message)
        if reason in _UNUSABLE_IMAGE_REASONS:
            return PodFailure(f"the image {container.image} cannot be used: {reason}{detail}")
        if reason in _PULL_FAILURE_REASONS:
            scheduled_at = own.scheduled.since if own.scheduled is not None else own.created_at
            if _is_image_missing(container.waiting_message):
                return PodFailure(f"the image {container.image} was not found or may not be pulled{detail}")
            if _has_lasted(scheduled_at, now, patience):
                return PodFailure(f"the image {container.image} cannot be pulled{detail}")
        if reason in _START_FAILURE_REASONS:
            return PodFailure(f"its container cannot be started{detail or f': {reason}'}")
        if reason == "CrashLoopBackOff":
            termination = container.last_termination
            return PodFailure(
                f"it keeps ending: {_describe_termination(termination)}" if termination else "it keeps ending",
                container.name,
            )
    return None


def _required_containers(own: MemberRecord) -> list[ContainerRecord]:
    """Containers that the dev server cannot run without: its own, and until that runs, the init containers."""
    if own.dev_container is None:
        return [*own.init_containers, *own.containers]
    return (
        [own.dev_container]
        if own.dev_container.running_since is not None
        else [*own.init_containers, own.dev_container]
    )


def _dev_first(own: MemberRecord) -> list[ContainerRecord]:
    return sorted(own.containers, key=lambda container: container is not own.dev_container)


def _find_scheduling_failure(own: MemberRecord, now: datetime, patience: timedelta) -> PodFailure | None:
    scheduled = own.scheduled
    if scheduled is None or scheduled.is_true or scheduled.reason != "Unschedulable":
        return None
    if not _has_lasted(scheduled.since, now, patience):
        return None
    rejection = f"its node {own.planned_node} rejects it" if own.planned_node else "no node accepts it"
    return PodFailure(f"{rejection}{_detail_suffix(scheduled.message)}")


def _describe_termination(termination: ContainerTermination) -> str:
    if termination.reason == "OOMKilled":
        return "it ran out of memory and was killed (OOMKilled)"
    code = termination.exit_code
    signal = termination.signal or (code - _SIGNAL_EXIT_CODE_BASE if code > _SIGNAL_EXIT_CODE_BASE else 0)
    end = f"it was killed by signal {signal}" if signal else f"it ended with exit code {code}"
    reason = f" ({termination.reason})" if termination.reason not in ("", "Error", "Completed") else ""
    return f"{end}{reason}{_detail_suffix(termination.message)}"


def is_on_wrong_node(pod: PodRecord, own: MemberRecord) -> bool:
    """Not on its planned node. The pod required that node, so the pod was changed; the resources that it holds now
    were planned for others."""
    return pod.node is not None and own.planned_node is not None and pod.node != own.planned_node


def is_pull_failing(container: ContainerRecord) -> bool:
    return container.waiting_reason in _PULL_FAILURE_REASONS


def _is_image_missing(message: str) -> bool:
    text = message.lower()
    return any(fragment in text for fragment in _MISSING_IMAGE_MESSAGES)


def _find_first_with_status(containers: Iterable[ContainerRecord]) -> str | None:
    return next((container.name for container in containers if container.has_status), None)


def _has_lasted(since: datetime | None, now: datetime, limit: timedelta) -> bool:
    return since is not None and now - since >= limit


def _detail_suffix(message: str) -> str:
    return f": {message.strip().rstrip('.')}" if message.strip() else ""


def _format_time(at: datetime | None) -> str:
    return f"{at:%H:%M:%S} UTC" if at is not None else "long ago"


# Rejected placements. The scheduler rejects a pod that it cannot bind. The kubelet rejects one that was bound and no
# longer fits, because another pod was faster. A pod on another node than planned was changed at admission. None
# of this is the dev server's fault: it may be launched again with a newer state of the node.


placement_rejections = Counter(
    "gpudev_kubernetes_placement_rejections", "Pods that were rejected by the node they were planned for", ["component"]
)

_KUBELET_REJECTION_REASONS = (
    "OutOf",
    "UnexpectedAdmissionError",
    "NodeAffinity",
    "TopologyAffinityError",
    "TaintToleration",
)


def find_rejecting_component(pod: PodRecord) -> str | None:
    """Which component rejects it; None: none does. The scheduler may still accept it later; the others never do."""
    if pod.member is None:
        return None
    if pod.node is None and not pod.is_deleting:
        scheduled = pod.member.scheduled
        is_rejected = scheduled is not None and not scheduled.is_true and scheduled.reason == "Unschedulable"
        return "scheduler" if is_rejected else None
    if pod.has_ended and pod.member.reason.startswith(_KUBELET_REJECTION_REASONS):
        return "kubelet"
    return "admission" if is_on_wrong_node(pod, pod.member) and not (pod.is_deleting or pod.has_ended) else None


def find_rejection_reason(pod: PodRecord) -> str | None:
    """That component's own message; None: no component rejects it."""
    match find_rejecting_component(pod), pod.member:
        case "scheduler", own if own is not None and own.scheduled is not None:
            return own.scheduled.message.strip() or "Unschedulable"
        case "kubelet", own if own is not None:
            return f"{own.reason}: {own.message.strip()}".removesuffix(": ")
        case "admission", own if own is not None:
            return f"it is on {pod.node} instead of {own.planned_node}"
        case _:
            return None
