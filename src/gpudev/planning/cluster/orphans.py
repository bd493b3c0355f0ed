"""Orphaned dev servers: those that no unreleased reservation owns.

They are reported first and removed after a grace period, so that a late row never costs a dev server. A missing record
never removes a disk.
"""

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpudev.domain.ids import ReservationId
from gpudev.ports.cluster import ClusterState, ServerState


@dataclass(frozen=True, slots=True)
class OrphanedServers:
    report: tuple[ReservationId, ...]
    """Without an owner, still within the grace period."""
    remove: tuple[ReservationId, ...]
    """Without an owner for the whole grace period."""
    first_observed: Mapping[ReservationId, datetime]
    """Input of the next decision. If the owner appears or the server is gone, its grace period starts over."""


def decide_orphans(
    servers: Mapping[ReservationId, ServerState],
    owners: AbstractSet[ReservationId],
    first_observed: Mapping[ReservationId, datetime],
    now: datetime,
    grace: timedelta,
) -> OrphanedServers:
    """`servers` is a complete observation made before `owners` (the unreleased) were read. In the other order, a dev
    server created in between would look like an orphan."""
    since = {rid: first_observed.get(rid, now) for rid in sorted(servers.keys() - owners)}
    remove = tuple(rid for rid, at in since.items() if now - at >= grace)
    report = tuple(rid for rid, at in since.items() if now - at < grace)
    return OrphanedServers(report, remove, since)


def count_orphans_as_foreign(state: ClusterState, owners: AbstractSet[ReservationId]) -> ClusterState:
    """The same state, with the units of orphans counted as foreign: no row records them, and they are unusable until
    the orphans are gone. The inputs must be read in the same order as for `decide_orphans`."""
    used: Counter[str] = Counter()
    for reservation_id in state.servers.keys() - owners:
        for share in state.servers[reservation_id].node_shares:
            used[share.node] += share.units
    if not used:
        return state
    return replace(
        state,
        nodes=tuple(
            replace(node, foreign_units=min(node.units, node.foreign_units + used[node.name]))
            if node.name in used
            else node
            for node in state.nodes
        ),
    )
