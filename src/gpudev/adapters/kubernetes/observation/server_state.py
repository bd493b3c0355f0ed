"""State of one dev server, from the records of its pods and service. Pure.

A gang is ready when all members are, and dead when one is. An observation is complete: what it does not contain does
not exist, and may be launched again if its end was not observed. A silent node makes its pods neither ready nor dead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpudev.adapters.kubernetes.cache.object_records import GonePod, MemberRecord, NodeRecord, PodRecord, ServerParts
from gpudev.adapters.kubernetes.observation.node_state import choose_node_address
from gpudev.adapters.kubernetes.observation.pod_failures import (
    explain_deletion,
    find_pod_failure,
    find_rejection_reason,
    is_pull_failing,
)
from gpudev.domain.cluster import NodeShare
from gpudev.domain.reservations.command_exit import CommandExit
from gpudev.domain.reservations.reservation import SshEndpoint
from gpudev.ports.cluster import ServerPhase, ServerState
from gpudev.settings import KubernetesSettings

LOGIN_USER = "dev"


@dataclass(frozen=True, slots=True)
class LogSource:
    """Where the crash log of a failure is."""

    pod: str
    uid: str
    """Which pod of that name."""
    container: str


@dataclass(frozen=True, slots=True)
class ServerObservation:
    state: ServerState
    log_source: LogSource | None = None


def compute_server_state(
    parts: ServerParts, nodes: Mapping[str, NodeRecord], now: datetime, settings: KubernetesSettings
) -> ServerObservation:
    members = sorted(
        (_Member(pod, pod.member) for pod in parts.pods if pod.member is not None),
        key=lambda member: member.record.rank,
    )
    node_shares = tuple(
        _to_node_share(member) for member in members if member.pod.node is not None and not member.pod.has_ended
    )
    observation = _find_failures(parts, members, nodes, now, settings)
    if observation is None:
        observation = ServerObservation(_starting_or_ready_state(parts, members, nodes, now, settings))
    rejection = next((reason for member in members if (reason := find_rejection_reason(member.pod)) is not None), None)
    return replace(observation, state=replace(observation.state, node_shares=node_shares, rejection=rejection))


@dataclass(frozen=True, slots=True)
class _Member:
    pod: PodRecord
    record: MemberRecord


def _find_failures(
    parts: ServerParts,
    members: Sequence[_Member],
    nodes: Mapping[str, NodeRecord],
    now: datetime,
    settings: KubernetesSettings,
) -> ServerObservation | None:
    rid = parts.reservation_id
    size = max((member.record.members for member in members), default=1)
    reasons: list[str] = []
    logs: LogSource | None = None
    for gone in parts.gone:
        if gone.pod.member is not None:
            size = max(size, gone.pod.member.members)
            reasons.append(_member_prefix(gone.pod.member, size) + _explain_gone_pod(gone, nodes, now, settings))
    for member in members:
        node = nodes.get(member.pod.node) if member.pod.node is not None else None
        failure = find_pod_failure(member.pod, member.record, node, now, settings)
        if failure is not None:
            reasons.append(_member_prefix(member.record, size) + failure.reason)
            if logs is None and failure.container is not None:
                logs = LogSource(member.pod.name, member.pod.uid, failure.container)
    if reasons:
        command_exit = _find_command_exit(parts)
        state = ServerState(rid, ServerPhase.DEAD, reason="\n".join(reasons), command_exit=command_exit)
        return ServerObservation(state, None if command_exit is not None else logs)
    missing = sorted(set(range(size)) - {member.record.rank for member in members})
    if missing:
        subject = "its pod is" if size == 1 else f"the pods of members {_join_numbers(missing)} are"
        reason = f"{subject} missing for an unknown reason"
        return ServerObservation(ServerState(rid, ServerPhase.DEAD, reason=reason, is_restartable=True))
    return None


def _find_command_exit(parts: ServerParts) -> CommandExit | None:
    """Also of pods that disappeared: a cleanup of ended pods does not change how the command ended."""
    pods = (*parts.pods, *(gone.pod for gone in parts.gone))
    terminations = (
        container.termination for pod in pods if pod.member is not None for container in pod.member.containers
    )
    return next(
        (
            termination.command_exit
            for termination in terminations
            if termination is not None and termination.command_exit is not None
        ),
        None,
    )


def _explain_gone_pod(
    gone: GonePod, nodes: Mapping[str, NodeRecord], now: datetime, settings: KubernetesSettings
) -> str:
    """Its failure before it was deleted, else who deleted it."""
    pod = gone.pod
    assert pod.member is not None
    node = nodes.get(pod.node) if pod.node is not None else None
    failure = find_pod_failure(pod, pod.member, node, now, settings)
    if failure is None and gone.was_observed:
        failure = explain_deletion(pod, pod.member, node)
    return failure.reason if failure is not None else "its pod disappeared while the cluster could not be watched"


def _starting_or_ready_state(
    parts: ServerParts,
    members: Sequence[_Member],
    nodes: Mapping[str, NodeRecord],
    now: datetime,
    settings: KubernetesSettings,
) -> ServerState:
    rid = parts.reservation_id
    for member in members:
        step = _find_step(member, nodes, now)
        if step is not None:
            return ServerState(rid, ServerPhase.STARTING, step=_member_prefix(member.record, len(members)) + step)
    if not parts.services:
        # Its launch was interrupted, or it was deleted. Another launch creates only what is missing.
        reason = "the Service of its ssh server is missing"
        return ServerState(rid, ServerPhase.DEAD, reason=reason, is_restartable=True)
    connection = _find_connection(parts, members[0], nodes, settings)
    if connection is None:
        return ServerState(rid, ServerPhase.STARTING, step="opening the route to its ssh server")
    return ServerState(rid, ServerPhase.READY, connection=connection)


def _find_step(member: _Member, nodes: Mapping[str, NodeRecord], now: datetime) -> str | None:
    """What it waits for; None: nothing, it is ready."""
    pod, own = member.pod, member.record
    if pod.node is None:
        message = own.scheduled.message if own.scheduled is not None and not own.scheduled.is_true else ""
        return f"waiting for its node{_detail_suffix(message)}"
    node = nodes.get(pod.node)
    if node is not None and not node.ready:
        return f"its node {pod.node} does not answer"
    if own.is_serving:
        return None
    begun_at = own.scheduled.since if own.scheduled is not None else own.created_at
    if own.sandbox is not None and not own.sandbox.is_true:
        return f"setting up network and volumes on {pod.node}{_format_elapsed(begun_at, now)}"
    for container in (
        container for container in own.init_containers if not (container.is_sidecar and container.running_since)
    ):
        if container.running_since is not None:
            return "preparing the dev server"
        if container.termination is None:
            if is_pull_failing(container):
                return f"pulling image {container.image} fails, trying again: {container.waiting_message}"
            return f"pulling image {container.image}{_format_elapsed(begun_at, now)}"
        begun_at = container.termination.finished_at or begun_at
    for container in (own.dev_container,) if own.dev_container is not None else own.containers:
        if is_pull_failing(container):
            return f"pulling image {container.image} fails, trying again: {container.waiting_message}"
        if container.waiting_reason not in (None, "", "ContainerCreating", "PodInitializing"):
            return f"starting its container: {container.waiting_reason}{_detail_suffix(container.waiting_message)}"
        if container.running_since is None:
            return f"pulling image {container.image}{_format_elapsed(begun_at, now)}"
    return "starting the ssh server"


def _find_connection(
    parts: ServerParts, first: _Member, nodes: Mapping[str, NodeRecord], settings: KubernetesSettings
) -> SshEndpoint | None:
    service = next((service for service in parts.services if service.node_port is not None), None)
    node = nodes.get(first.pod.node) if first.pod.node is not None else None
    if service is None or service.node_port is None or node is None:
        return None
    address = choose_node_address(node, settings.node_address)
    host_key = first.record.host_key or service.host_key
    if not address or not host_key:
        return None
    return SshEndpoint(address, service.node_port, LOGIN_USER, host_key)


def _to_node_share(member: _Member) -> NodeShare:
    assert member.pod.node is not None
    return NodeShare(member.record.rank, member.pod.node, max(1, member.pod.requests.gpus))


def _member_prefix(own: MemberRecord, size: int) -> str:
    return f"member {own.rank}: " if size > 1 else ""


def _format_elapsed(since: datetime | None, now: datetime) -> str:
    """In growing intervals, because people get every change as a new event."""
    if since is None:
        return ""
    seconds = (now - since) // timedelta(seconds=1)
    if seconds >= 60:
        return f", {seconds // 60} min"
    return next((f", {step} s" for step in (40, 20, 10) if seconds >= step), "")


def _detail_suffix(message: str) -> str:
    return f": {message.strip()}" if message.strip() else ""


def _join_numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
