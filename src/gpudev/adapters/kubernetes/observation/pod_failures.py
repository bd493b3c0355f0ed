"""Why a pod of ours is dead or will never live, in words people understand; None while it may still do: pure.

Silence is no death: a node that does not answer keeps its pods until it has been silent for long, or the cluster has
given them up.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpudev.adapters.kubernetes.cache.object_records import ContainerRecord, Ending, NodeRecord, OwnRecord, PodRecord
from gpudev.settings import KubernetesSettings

_NEVER_PULLED = ("InvalidImageName", "ErrImageNeverPull")
_PULL_FAILS = (
    "ErrImagePull",
    "ImagePullBackOff",
    "RegistryUnavailable",
    "ImageInspectError",
    "SignatureValidationFailed",
)
_NOT_THERE = (
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
_CANNOT_RUN = ("CreateContainerError", "RunContainerError", "StartError", "ContainerCannotRun")
_SIGNALLED = 128


@dataclass(frozen=True, slots=True)
class Death:
    reason: str
    container: str | None = None
    """Whose last log lines tell more; None: there are none to be had."""


def find_death(
    pod: PodRecord, own: OwnRecord, node: NodeRecord | None, now: datetime, settings: KubernetesSettings
) -> Death | None:
    """`node`: the pod's, None when it has none or that is no more."""
    if pod.ended:
        return _ended(pod, own, node)
    if pod.node is not None and node is None:
        return Death(f"its node {pod.node} is gone")
    if pod.is_over and not pod.deleting:
        return _ended(pod, own, node)
    if pod.deleting:
        return taken_away(pod, own, node)
    if is_elsewhere(pod, own):
        return Death(
            f"its pod was put on {pod.node} instead of {own.planned_node}: something in the cluster changes it"
        )
    if node is not None and not node.ready and _lasts(node.ready_since, now, settings.node_lost_after):
        return Death(f"its node {node.name} was lost: it has not answered since {_clock(node.ready_since)}")
    if pod.node is None:
        return _unschedulable(own, now, settings.unschedulable_after)
    return _cannot_start(own, now, settings.image_pull_patience)


def taken_away(pod: PodRecord, own: OwnRecord, node: NodeRecord | None) -> Death:
    """Of a pod that is being deleted, or has been, and not by us."""
    where = pod.node or "nowhere"
    if pod.node is not None and (node is None or not node.ready):
        return Death(f"its node {where} was lost" if node is not None else f"its node {where} is gone")
    if own.disruption is None or not own.disruption.holds:
        return Death(f"its pod on {where} was deleted by somebody else")
    match own.disruption.reason:
        case "DeletionByTaintManager":
            return Death(f"it was evicted from {where}: the node was closed to it{_said(own.disruption.message)}")
        case "EvictionByEvictionAPI":
            return Death(f"it was evicted from {where}: the node is being emptied{_said(own.disruption.message)}")
        case "PreemptionByScheduler":
            return Death(f"it had to make room on {where} for a pod of higher priority")
        case "DeletionByPodGC":
            return Death(f"its node {where} is gone")
        case other:
            return Death(f"it was evicted from {where} ({other}){_said(own.disruption.message)}")


def _ended(pod: PodRecord, own: OwnRecord, node: NodeRecord | None) -> Death:
    """Most telling first: what the cluster did to it, then what became of its containers."""
    match own.reason:
        case "Evicted":
            return Death(f"it was evicted from {pod.node}{_said(own.message)}", _first(_dev_first(own)))
        case "NodeLost":
            return Death(f"its node {pod.node} was lost")
        case "Terminated" | "NodeShutdown" | "Shutdown":
            return Death(f"its node {pod.node} was shut down{_said(own.message)}")
        case "DeadlineExceeded":
            return Death(
                f"the cluster ended it: its time limit was reached{_said(own.message)}", _first(_dev_first(own))
            )
        case "Preempting":
            return Death(f"it had to make room on {pod.node} for a more important pod")
        case reason if reason and not any(one.ended for one in own.containers):
            # Out of GPUs, a device plugin that failed: the kubelet did not take it.
            return Death(f"the node {pod.node} did not take it: {reason}{_said(own.message)}")
    if node is None and pod.node is not None:
        return Death(f"its node {pod.node} is gone")
    if own.disruption is not None and own.disruption.holds and own.disruption.reason != "TerminationByKubelet":
        return taken_away(pod, own, node)
    for container in own.init_containers:
        if container.ended is not None and container.ended.exit_code != 0:
            return Death(f"preparing it failed: {_ending(container.ended)}", container.name)
    for container in _dev_first(own):
        if container.ended is not None:
            return Death(_ending(container.ended), container.name)
    return Death(f"it ended{_said(own.message)}" if own.message else "it ended, and the cluster does not say why")


def _cannot_start(own: OwnRecord, now: datetime, patience: timedelta) -> Death | None:
    for container in _needed(own):
        what, said = container.waiting, _said(container.waiting_message)
        if what in _NEVER_PULLED:
            return Death(f"the image {container.image} cannot be used: {what}{said}")
        if what in _PULL_FAILS:
            scheduled_at = own.scheduled.since if own.scheduled is not None else own.created_at
            if _is_not_there(container.waiting_message):
                return Death(f"the image {container.image} was not found or may not be pulled{said}")
            if _lasts(scheduled_at, now, patience):
                return Death(f"the image {container.image} cannot be pulled{said}")
        if what in _CANNOT_RUN:
            return Death(f"its container cannot be started{said or f': {what}'}")
        if what == "CrashLoopBackOff":
            ending = container.last_ended
            return Death(f"it keeps ending: {_ending(ending)}" if ending else "it keeps ending", container.name)
    return None


def _needed(own: OwnRecord) -> list[ContainerRecord]:
    """Without which there is no dev server: itself, and until it runs, whatever has to come before it."""
    if own.dev is None:
        return [*own.init_containers, *own.containers]
    return [own.dev] if own.dev.running_since is not None else [*own.init_containers, own.dev]


def _dev_first(own: OwnRecord) -> list[ContainerRecord]:
    return sorted(own.containers, key=lambda one: one is not own.dev)


def _unschedulable(own: OwnRecord, now: datetime, patience: timedelta) -> Death | None:
    said = own.scheduled
    if said is None or said.holds or said.reason != "Unschedulable" or not _lasts(said.since, now, patience):
        return None
    where = f"its node {own.planned_node} does not take it" if own.planned_node else "no node takes it"
    return Death(f"{where}{_said(said.message)}")


def _ending(ending: Ending) -> str:
    if ending.reason == "OOMKilled":
        return "it ran out of memory and was killed (OOMKilled)"
    number = ending.signal or (ending.exit_code - _SIGNALLED if ending.exit_code > _SIGNALLED else 0)
    how = f"killed by signal {number}" if number else f"with exit code {ending.exit_code}"
    why = f" ({ending.reason})" if ending.reason not in ("", "Error", "Completed") else ""
    return f"it ended {how}{why}{_said(ending.message)}" if not number else f"it was {how}{why}{_said(ending.message)}"


def is_elsewhere(pod: PodRecord, own: OwnRecord) -> bool:
    """Not where it was planned. It asked for that node and no other, so somebody has changed what it asks for; and what
    it has there was meant for others."""
    return pod.node is not None and own.planned_node is not None and pod.node != own.planned_node


def is_pull_failing(container: ContainerRecord) -> bool:
    return container.waiting in _PULL_FAILS


def _is_not_there(message: str) -> bool:
    said = message.lower()
    return any(sign in said for sign in _NOT_THERE)


def _first(containers: Iterable[ContainerRecord]) -> str | None:
    return next((one.name for one in containers if one.started), None)


def _lasts(since: datetime | None, now: datetime, limit: timedelta) -> bool:
    return since is not None and now - since >= limit


def _said(message: str) -> str:
    return f": {message.strip().rstrip('.')}" if message.strip() else ""


def _clock(at: datetime | None) -> str:
    return f"{at:%H:%M:%S} UTC" if at is not None else "long ago"
