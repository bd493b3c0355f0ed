"""Where a reservation with a disk may start: where its volume is, or elsewhere when moving it is faster than waiting.

Volumes cannot leave their zone. Moving one means: a snapshot (unless there is one of exactly what is on it), and a new
volume from that in the other zone. Who fits on which node is no matter of this module.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpudev.domain.disk_operations import DiskState


@dataclass(frozen=True, slots=True)
class MoveTimes:
    """How long the parts of a move take at most, by plan."""

    snapshot_per_gb: timedelta = timedelta(seconds=6)
    """Only what was written since the last one is copied; this is for all of it."""
    volume: timedelta = timedelta(seconds=30)

    def of(self, disk: DiskState) -> timedelta:
        if disk.saved_as is not None:
            return self.volume
        return self.volume + self.snapshot_per_gb * (disk.size_gb or 0)


@dataclass(frozen=True, slots=True)
class ZoneChoice:
    zone: str
    starts_at: datetime
    is_move: bool


def zones_without_moving(disk: DiskState | None) -> frozenset[str] | None:
    """None: any zone will do."""
    if disk is None or disk.volume_id is None or disk.zone is None:
        return None
    return frozenset({disk.zone})


def choose_zone(
    disk: DiskState | None, earliest: Mapping[str, datetime], now: datetime, times: MoveTimes | None = None
) -> ZoneChoice | None:
    """`earliest`: when a place is free in each zone. The earliest start, moves included; where two are equal, the one
    without a move, then by name. None: there is no place anywhere."""
    at_home = zones_without_moving(disk)
    takes = timedelta(0) if disk is None else (times or MoveTimes()).of(disk)
    choices = []
    for zone, free_at in earliest.items():
        is_move = at_home is not None and zone not in at_home
        # A move begins now and goes on while the place becomes free.
        starts_at = max(free_at, now + takes) if is_move else free_at
        choices.append(ZoneChoice(zone, starts_at, is_move))
    return min(choices, key=lambda one: (one.starts_at, one.is_move, one.zone), default=None)
