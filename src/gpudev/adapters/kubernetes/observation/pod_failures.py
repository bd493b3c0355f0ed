"""Why a pod of ours is dead or will never live, in words people understand; None while it may still do: pure.

Silence is no death: a node that does not answer keeps its pods until it has been silent for long, or the cluster has
given them up.
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
"""What registries say when asking again will not help."""
_START_FAILURE_REASONS = ("CreateContainerError", "RunContainerError", "StartError", "ContainerCannotRun")
_SIGNAL_EXIT_CODE_BASE = 128


@dataclass(frozen=True, slots=True)
class PodFailure:
    reason: str
    container: str | None = None
    """Whose last log lines tell more; None: there are none to be had."""


def find_pod_failure(
    pod: PodRecord, own: MemberRecord, node: NodeRecord | None, now: datetime, settings: KubernetesSettings
) -> PodFailure | None:
    """`node`: the pod's, None when it has none or that is no more."""
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
            f"its pod was put on {pod.node} instead of {own.planned_node}: something in the cluster changes it"
        )
    if node is not None and not node.ready and _has_lasted(node.ready_since, now, settings.node_lost_after):
        return PodFailure(f"its node {node.name} was lost: it has not answered since {_format_time(node.ready_since)}")
    if pod.node is None:
        return _find_scheduling_failure(own, now, settings.unschedulable_after)
    return _find_start_failure(own, now, settings.image_pull_patience)


def explain_deletion(pod: PodRecord, own: MemberRecord, node: NodeRecord | None) -> PodFailure:
    """Of a pod that is being deleted, or has been, and not by us."""
    where = pod.node or "nowhere"
    if pod.node is not None and (node is None or not node.ready):
        return PodFailure(f"its node {where} was lost" if node is not None else f"its node {where} is gone")
    if own.disruption is None or not own.disruption.is_true:
        return PodFailure(f"its pod on {where} was deleted by somebody else")
    match own.disruption.reason:
        case "DeletionByTaintManager":
            return PodFailure(
                f"it was evicted from {where}: the node was closed to it{_detail_suffix(own.disruption.message)}"
            )
        case "EvictionByEvictionAPI":
            return PodFailure(
                f"it was evicted from {where}: the node is being emptied{_detail_suffix(own.disruption.message)}"
            )
        case "PreemptionByScheduler":
            return PodFailure(f"it had to make room on {where} for a pod of higher priority")
        case "DeletionByPodGC":
            return PodFailure(f"its node {where} is gone")
        case other:
            return PodFailure(f"it was evicted from {where} ({other}){_detail_suffix(own.disruption.message)}")


def _explain_end(pod: PodRecord, own: MemberRecord, node: NodeRecord | None) -> PodFailure:
    """Most telling first: what the cluster did to it, then what became of its containers."""
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
            return PodFailure(f"it had to make room on {pod.node} for a more important pod")
        case reason if reason and not any(one.termination for one in own.containers):
            # Out of GPUs, a device plugin that failed: the kubelet did not take it.
            return PodFailure(f"the node {pod.node} did not take it: {reason}{_detail_suffix(own.message)}")
    if node is None and pod.node is not None:
        return PodFailure(f"its node {pod.node} is gone")
    if own.disruption is not None and own.disruption.is_true and own.disruption.reason != "TerminationByKubelet":
        return explain_deletion(pod, own, node)
    for container in own.init_containers:
        if container.termination is not None and container.termination.exit_code != 0:
            return PodFailure(f"preparing it failed: {_describe_termination(container.termination)}", container.name)
    for container in _dev_first(own):
        if container.termination is not None:
            return PodFailure(_describe_termination(container.termination), container.name)
    return PodFailure(
        f"it ended{_detail_suffix(own.message)}" if own.message else "it ended, and the cluster does not say why"
    )


def _find_start_failure(own: MemberRecord, now: datetime, patience: timedelta) -> PodFailure | None:
    for container in _required_containers(own):
        what, said = container.waiting_reason, _detail_suffix(container.waiting_message)
        if what in _UNUSABLE_IMAGE_REASONS:
            return PodFailure(f"the image {container.image} cannot be used: {what}{said}")
        if what in _PULL_FAILURE_REASONS:
            scheduled_at = own.scheduled.since if own.scheduled is not None else own.created_at
            if _is_image_missing(container.waiting_message):
                return PodFailure(f"the image {container.image} was not found or may not be pulled{said}")
            if _has_lasted(scheduled_at, now, patience):
                return PodFailure(f"the image {container.image} cannot be pulled{said}")
        if what in _START_FAILURE_REASONS:
            return PodFailure(f"its container cannot be started{said or f': {what}'}")
        if what == "CrashLoopBackOff":
            ending = container.last_termination
            return PodFailure(
                f"it keeps ending: {_describe_termination(ending)}" if ending else "it keeps ending", container.name
            )
    return None


def _required_containers(own: MemberRecord) -> list[ContainerRecord]:
    """Without which there is no dev server: itself, and until it runs, whatever has to come before it."""
    if own.dev_container is None:
        return [*own.init_containers, *own.containers]
    return (
        [own.dev_container]
        if own.dev_container.running_since is not None
        else [*own.init_containers, own.dev_container]
    )


def _dev_first(own: MemberRecord) -> list[ContainerRecord]:
    return sorted(own.containers, key=lambda one: one is not own.dev_container)


def _find_scheduling_failure(own: MemberRecord, now: datetime, patience: timedelta) -> PodFailure | None:
    said = own.scheduled
    if said is None or said.is_true or said.reason != "Unschedulable" or not _has_lasted(said.since, now, patience):
        return None
    where = f"its node {own.planned_node} does not take it" if own.planned_node else "no node takes it"
    return PodFailure(f"{where}{_detail_suffix(said.message)}")


def _describe_termination(ending: ContainerTermination) -> str:
    if ending.reason == "OOMKilled":
        return "it ran out of memory and was killed (OOMKilled)"
    number = ending.signal or (
        ending.exit_code - _SIGNAL_EXIT_CODE_BASE if ending.exit_code > _SIGNAL_EXIT_CODE_BASE else 0
    )
    how = f"killed by signal {number}" if number else f"with exit code {ending.exit_code}"
    why = f" ({ending.reason})" if ending.reason not in ("", "Error", "Completed") else ""
    return (
        f"it ended {how}{why}{_detail_suffix(ending.message)}"
        if not number
        else f"it was {how}{why}{_detail_suffix(ending.message)}"
    )


def is_on_wrong_node(pod: PodRecord, own: MemberRecord) -> bool:
    """Not where it was planned. It asked for that node and no other, so somebody has changed what it asks for; and what
    it has there was meant for others."""
    return pod.node is not None and own.planned_node is not None and pod.node != own.planned_node


def is_pull_failing(container: ContainerRecord) -> bool:
    return container.waiting_reason in _PULL_FAILURE_REASONS


def _is_image_missing(message: str) -> bool:
    said = message.lower()
    return any(sign in said for sign in _MISSING_IMAGE_MESSAGES)


def _find_first_with_status(containers: Iterable[ContainerRecord]) -> str | None:
    return next((one.name for one in containers if one.has_status), None)


def _has_lasted(since: datetime | None, now: datetime, limit: timedelta) -> bool:
    return since is not None and now - since >= limit


def _detail_suffix(message: str) -> str:
    return f": {message.strip().rstrip('.')}" if message.strip() else ""


def _format_time(at: datetime | None) -> str:
    return f"{at:%H:%M:%S} UTC" if at is not None else "long ago"


# When plan and cluster disagree: a pod that its planned node does not take. Pure, but for the counter.
#
# The scheduler says so of a pod it cannot bind, the kubelet of one that was bound and no longer fits (somebody was
# faster); of one that is elsewhere, somebody changed what it asks for when it was admitted. None of it is the dev
# server's fault: it may be started again, once the node is seen as it is.


placement_rejections = Counter(
    "gpudev_kubernetes_plan_refusals", "Pods that the node they were planned for did not take", ["who"]
)

_KUBELET_REJECTION_REASONS = (
    "OutOf",
    "UnexpectedAdmissionError",
    "NodeAffinity",
    "TopologyAffinityError",
    "TaintToleration",
)


def find_rejecting_component(pod: PodRecord) -> str | None:
    """Who refuses it; None: nobody does. The scheduler may still change its mind; a pod that is dead stays refused."""
    if pod.member is None:
        return None
    if pod.node is None and not pod.is_deleting:
        said = pod.member.scheduled
        return "scheduler" if said is not None and not said.is_true and said.reason == "Unschedulable" else None
    if pod.has_ended and pod.member.reason.startswith(_KUBELET_REJECTION_REASONS):
        return "kubelet"
    return "admission" if is_on_wrong_node(pod, pod.member) and not (pod.is_deleting or pod.has_ended) else None


def find_rejection_reason(pod: PodRecord) -> str | None:
    """The same in the words of whoever does."""
    match find_rejecting_component(pod), pod.member:
        case "scheduler", own if own is not None and own.scheduled is not None:
            return own.scheduled.message.strip() or "Unschedulable"
        case "kubelet", own if own is not None:
            return f"{own.reason}: {own.message.strip()}".removesuffix(": ")
        case "admission", own if own is not None:
            return f"it is on {pod.node} instead of {own.planned_node}"
        case _:
            return None
