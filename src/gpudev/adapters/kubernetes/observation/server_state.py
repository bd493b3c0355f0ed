"""The pods and the service of one reservation → how far its dev server is: pure.

All members of a gang are one: ready when all are, dead when one is. What a complete look at the cluster does not have
is not there; when nobody saw it go, it may be started again. What is merely silent is neither.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpudev.adapters.kubernetes.cache.object_records import GonePod, NodeRecord, OwnRecord, PodRecord, ServerParts
from gpudev.adapters.kubernetes.observation.node_state import address_of
from gpudev.adapters.kubernetes.observation.pod_failures import find_death, is_pull_failing, taken_away
from gpudev.adapters.kubernetes.refusals import why_refused
from gpudev.domain.cluster import Share
from gpudev.domain.reservations.command_exit import RunEnd
from gpudev.domain.reservations.reservation import Connection
from gpudev.ports.cluster import Phase, ServerSeen
from gpudev.settings import KubernetesSettings

LOGIN = "dev"


@dataclass(frozen=True, slots=True)
class LogSource:
    """Whose last lines tell more about a death."""

    pod: str
    uid: str
    """Which of that name."""
    container: str


@dataclass(frozen=True, slots=True)
class ServerFacts:
    seen: ServerSeen
    logs: LogSource | None = None


def see_server(
    parts: ServerParts, nodes: Mapping[str, NodeRecord], now: datetime, settings: KubernetesSettings
) -> ServerFacts:
    members = sorted((_Member(pod, pod.own) for pod in parts.pods if pod.own is not None), key=lambda one: one.own.rank)
    held = tuple(_held(member) for member in members if member.pod.node is not None and not member.pod.ended)
    facts = _find_deaths(parts, members, nodes, now, settings)
    if facts is None:
        facts = ServerFacts(_alive(parts, members, nodes, now, settings))
    refused = next((why for one in members if (why := why_refused(one.pod)) is not None), None)
    return replace(facts, seen=replace(facts.seen, held=held, refused=refused))


@dataclass(frozen=True, slots=True)
class _Member:
    pod: PodRecord
    own: OwnRecord


def _find_deaths(
    parts: ServerParts,
    members: Sequence[_Member],
    nodes: Mapping[str, NodeRecord],
    now: datetime,
    settings: KubernetesSettings,
) -> ServerFacts | None:
    rid = parts.reservation_id
    size = max((one.own.members for one in members), default=1)
    reasons: list[str] = []
    logs: LogSource | None = None
    for gone in parts.gone:
        if gone.pod.own is not None:
            size = max(size, gone.pod.own.members)
            reasons.append(_name(gone.pod.own, size) + _why_gone(gone, nodes, now, settings))
    for member in members:
        node = nodes.get(member.pod.node) if member.pod.node is not None else None
        death = find_death(member.pod, member.own, node, now, settings)
        if death is not None:
            reasons.append(_name(member.own, size) + death.reason)
            if logs is None and death.container is not None:
                logs = LogSource(member.pod.name, member.pod.uid, death.container)
    if reasons:
        run_end = _find_run_end(parts)
        seen = ServerSeen(rid, Phase.DEAD, reason="\n".join(reasons), run_end=run_end)
        return ServerFacts(seen, None if run_end is not None else logs)
    missing = sorted(set(range(size)) - {one.own.rank for one in members})
    if missing:
        what = "its pod is" if size == 1 else f"the pods of members {_list(missing)} are"
        reason = f"{what} not there, and nobody saw why"
        return ServerFacts(ServerSeen(rid, Phase.DEAD, reason=reason, lost_unwatched=True))
    return None


def _find_run_end(parts: ServerParts) -> RunEnd | None:
    """Of those that were taken away since, too: whoever cleans up behind pods that have ended changes nothing."""
    pods = (*parts.pods, *(gone.pod for gone in parts.gone))
    ends = (one.ended for pod in pods if pod.own is not None for one in pod.own.containers)
    return next((end.run_end for end in ends if end is not None and end.run_end is not None), None)


def _why_gone(gone: GonePod, nodes: Mapping[str, NodeRecord], now: datetime, settings: KubernetesSettings) -> str:
    """What it died of before it was taken away, else who took it away."""
    pod = gone.pod
    assert pod.own is not None
    node = nodes.get(pod.node) if pod.node is not None else None
    death = find_death(pod, pod.own, node, now, settings)
    if death is None and gone.was_seen:
        death = taken_away(pod, pod.own, node)
    return death.reason if death is not None else "its pod went while the cluster was out of sight"


def _alive(
    parts: ServerParts,
    members: Sequence[_Member],
    nodes: Mapping[str, NodeRecord],
    now: datetime,
    settings: KubernetesSettings,
) -> ServerSeen:
    rid = parts.reservation_id
    for member in members:
        step = _find_step(member, nodes, now)
        if step is not None:
            return ServerSeen(rid, Phase.STARTING, step=_name(member.own, len(members)) + step)
    if not parts.services:
        # Its launch broke off, or somebody took it away: starting it again makes what is missing and nothing else.
        reason = "its service, the way to its ssh server, is not there"
        return ServerSeen(rid, Phase.DEAD, reason=reason, lost_unwatched=True)
    connection = _find_connection(parts, members[0], nodes, settings)
    if connection is None:
        return ServerSeen(rid, Phase.STARTING, step="opening the way to its ssh server")
    return ServerSeen(rid, Phase.READY, connection=connection)


def _find_step(member: _Member, nodes: Mapping[str, NodeRecord], now: datetime) -> str | None:
    """What it is waiting for; None: for nothing, it is ready."""
    pod, own = member.pod, member.own
    if pod.node is None:
        said = own.scheduled.message if own.scheduled is not None and not own.scheduled.holds else ""
        return f"waiting for its node{_said(said)}"
    node = nodes.get(pod.node)
    if node is not None and not node.ready:
        return f"its node {pod.node} does not answer"
    if own.is_serving:
        return None
    begun_at = own.scheduled.since if own.scheduled is not None else own.created_at
    if own.sandbox is not None and not own.sandbox.holds:
        return f"setting up network and volumes on {pod.node}{_lasting(begun_at, now)}"
    for container in (one for one in own.init_containers if not (one.stays and one.running_since)):
        if container.running_since is not None:
            return "preparing the dev server"
        if container.ended is None:
            if is_pull_failing(container):
                return f"pulling image {container.image} fails, trying again: {container.waiting_message}"
            return f"pulling image {container.image}{_lasting(begun_at, now)}"
        begun_at = container.ended.at or begun_at
    for container in (own.dev,) if own.dev is not None else own.containers:
        if is_pull_failing(container):
            return f"pulling image {container.image} fails, trying again: {container.waiting_message}"
        if container.waiting not in (None, "", "ContainerCreating", "PodInitializing"):
            return f"starting its container: {container.waiting}{_said(container.waiting_message)}"
        if container.running_since is None:
            return f"pulling image {container.image}{_lasting(begun_at, now)}"
    return "starting the ssh server"


def _find_connection(
    parts: ServerParts, first: _Member, nodes: Mapping[str, NodeRecord], settings: KubernetesSettings
) -> Connection | None:
    service = next((one for one in parts.services if one.node_port is not None), None)
    node = nodes.get(first.pod.node) if first.pod.node is not None else None
    if service is None or service.node_port is None or node is None:
        return None
    address = address_of(node, settings.node_address)
    host_key = first.own.host_key or service.host_key
    if not address or not host_key:
        return None
    return Connection(address, service.node_port, LOGIN, host_key)


def _held(member: _Member) -> Share:
    assert member.pod.node is not None
    return Share(member.own.rank, member.pod.node, max(1, member.pod.demand.gpus))


def _name(own: OwnRecord, size: int) -> str:
    return f"member {own.rank}: " if size > 1 else ""


def _lasting(since: datetime | None, now: datetime) -> str:
    """In steps that grow: each is told to people as news."""
    if since is None:
        return ""
    seconds = (now - since) // timedelta(seconds=1)
    if seconds >= 60:
        return f", {seconds // 60} min"
    return next((f", {step} s" for step in (40, 20, 10) if seconds >= step), "")


def _said(message: str) -> str:
    return f": {message.strip()}" if message.strip() else ""


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
