"""The coming hours of every node by the planned ends: how much is in use when. For people to look at; it decides
nothing and knows no names."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpudev.domain.cluster import Allocation, Node


@dataclass(frozen=True, slots=True)
class PlannedUse:
    """Something planned: from when to when, on which nodes, how many units on each."""

    begins: datetime
    ends: datetime
    nodes: tuple[str, ...]
    units: int


@dataclass(frozen=True, slots=True)
class UsageStep:
    at: datetime
    used: int


def usage_timeline(
    node: Node, allocations: Iterable[Allocation], planned_uses: Iterable[PlannedUse], now: datetime, until: datetime
) -> list[UsageStep]:
    """The first step is now; each lasts until the next one, the last to `until`."""
    changes: list[tuple[datetime, int]] = [(now, max(node.foreign_units, len(node.foreign_indices)))]
    for holding in allocations:
        units = sum(share.units for share in holding.shares if share.node == node.name)
        if units:
            changes.append((now, units))
            if holding.until is not None:
                changes.append((max(now, holding.until), -units))
    for booking in planned_uses:
        if node.name in booking.nodes:
            changes += [(max(now, booking.begins), booking.units), (max(now, booking.ends), -booking.units)]
    return _usage_steps(sorted(changes), until, node.units)


def _usage_steps(changes: Sequence[tuple[datetime, int]], until: datetime, most: int) -> list[UsageStep]:
    steps: list[UsageStep] = []
    used = 0
    for at, change in changes:
        if at >= until:
            break
        used += change
        if steps and steps[-1].at == at:
            steps.pop()
        shown = min(most, max(0, used))
        if not steps or steps[-1].used != shown:
            steps.append(UsageStep(at, shown))
    return steps
