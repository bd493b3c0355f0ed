"""When plan and cluster disagree: a pod that its planned node does not take. Pure, but for the counter.

The scheduler says so of a pod it cannot bind, the kubelet of one that was bound and no longer fits (somebody was
faster); of one that is elsewhere, somebody changed what it asks for when it was admitted. None of it is the dev
server's fault: it may be started again, once the node is seen as it is.
"""

from prometheus_client import Counter

from gpudev.adapters.kubernetes.cache.object_records import PodRecord
from gpudev.adapters.kubernetes.observation.pod_failures import is_on_wrong_node

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
