"""Requeue and retry: launches that the cluster rejects or cannot carry out now.

A launch that could not be attempted does not count as an attempt. The owner gets the cluster's reason, once per
reason.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from gpudev.domain.backoff import backoff
from gpudev.domain.cluster import Node, describe_closed_node
from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations import changes
from gpudev.domain.reservations.changes import Change
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation
from gpudev.ports.cluster import ClusterState
from gpudev.settings import TimingSettings

_STEP_PREFIX = "cannot be started right now, trying again: "
_PAUSES_BETWEEN_TRIES = 5
"""How many pauses an attempt may be late, since it runs in the next cycle."""
_NUMBERS = re.compile(r"\d+")


def postpone_launch(reservation: Reservation, why: str, now: datetime, timing: TimingSettings) -> Change:
    step = f"{_STEP_PREFIX}{why}"
    is_to_start = reservation.status is Status.PREPARING or reservation.step is not None
    is_news = is_to_start and not _is_same_text(reservation.step or "", step)
    return changes.launch_postponed(reservation, now + timing.retry_backoff, step if is_news else None)


def find_postponement(reservation: Reservation) -> str | None:
    """Its current step, if that is a postponement."""
    return reservation.step if reservation.step is not None and reservation.step.startswith(_STEP_PREFIX) else None


def postponed_until(reservation: Reservation, timing: TimingSettings) -> datetime | None:
    """When the next attempt would be recorded if it failed too. None: not postponed."""
    if find_postponement(reservation) is None or reservation.next_attempt_at is None:
        return None
    return reservation.next_attempt_at + _PAUSES_BETWEEN_TRIES * timing.retry_backoff


def _is_same_text(one: str, other: str) -> bool:
    """Ignores numbers: ports and times differ with every attempt."""
    return _NUMBERS.sub("", one) == _NUMBERS.sub("", other)


def failed_launch_change(
    reservation: Reservation, error: str, now: datetime, timing: TimingSettings, max_attempts: int
) -> Change:
    """The cluster rejected a launch: retry with backoff; after `max_attempts` the reservation fails."""
    attempts = reservation.launch_attempts + 1
    if attempts < max_attempts:
        again = now + backoff(attempts, timing.retry_backoff)
        return changes.launch_retried(reservation, error, again, max_attempts)
    return changes.launch_failed(reservation, error)


# Rejected placements: requeue, or count an attempt.
#
# The plan is made from observed state; at the same moment another pod may take a GPU, or a node may close. Such a
# request is requeued and placed elsewhere. A placement that looks free and is rejected counts as an attempt: a new plan
# would choose it again.


@dataclass(frozen=True, slots=True)
class RejectedPlacements:
    """Reservations whose placement was rejected for a visible reason."""

    reasons: Mapping[ReservationId, str]
    nodes: Mapping[str, Node]
    held: Mapping[str, int]

    @classmethod
    def from_state(cls, state: ClusterState, reservations: Iterable[Reservation]) -> "RejectedPlacements | None":
        reasons = {rid: server.rejection for rid, server in state.servers.items() if server.rejection is not None}
        return (
            cls(reasons, {node.name: node for node in state.nodes}, _count_held_units(reservations))
            if reasons
            else None
        )

    def find_reason(self, reservation: Reservation) -> str | None:
        reason = self.reasons.get(reservation.reservation_id)
        if reason is None or reservation.status is not Status.PREPARING:
            return None
        obstacle = _find_obstacle(reservation, self.nodes, self.held)
        return f"{obstacle} ({reason})" if obstacle is not None else None


def _count_held_units(reservations: Iterable[Reservation]) -> Counter[str]:
    """By node, over all reservations."""
    held: Counter[str] = Counter()
    for reservation in reservations:
        for share in reservation.shares if not reservation.is_released else ():
            held[share.node] += share.units
    return held


def _find_obstacle(reservation: Reservation, nodes: Mapping[str, Node], held: Mapping[str, int]) -> str | None:
    """The visible reason why its placement cannot work, for people. None: none is visible. `held` includes its own
    units."""
    for share in reservation.shares:
        node = nodes.get(share.node)
        if node is None:
            return f"node {share.node} is gone"
        if not node.ready:
            return f"node {share.node} does not answer"
        if not node.schedulable:
            return f"node {share.node} was {describe_closed_node(node)}"
        if node.foreign_units + held.get(share.node, 0) > node.units:
            return f"unmanaged use took what was free on node {share.node}"
    return None
