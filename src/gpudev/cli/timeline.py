"""Time as columns: which stretch of the coming hours each column of a chart stands for, and the ruler above it.

Columns begin at round times of the reader's clock, so that an hour on the ruler is an hour on the wall. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpudev.wire.cluster import PlanStep

_SLOT_MINUTES = (1, 2, 5, 10, 15, 20, 30, 60, 120, 180, 240, 360, 720, 1440)
_LABEL_MINUTES = (5, 10, 15, 30, 60, 120, 180, 240, 360, 720, 1440)
_MINUTE = timedelta(minutes=1)
_LABEL_COLUMNS = 7
"""What '|14:00' needs to be told from its neighbour."""


@dataclass(frozen=True, slots=True)
class TimeSlots:
    first: datetime
    """Not after the plan's begin: the first column may have begun already."""
    length: timedelta
    count: int

    def column_of(self, moment: datetime) -> int | None:
        """None: it lies outside."""
        index = (moment - self.first) // self.length
        return index if 0 <= index < self.count else None


def choose_slots(begins: datetime, until: datetime, columns: int) -> TimeSlots:
    """As fine as so many columns allow."""
    for minutes in _SLOT_MINUTES:
        slots = _slots_of_length(begins, until, minutes)
        if slots.count <= columns:
            return slots
    return _slots_of_length(begins, until, _SLOT_MINUTES[-1] * 7)


def _slots_of_length(begins: datetime, until: datetime, minutes: int) -> TimeSlots:
    length = timedelta(minutes=minutes)
    local = begins.astimezone()
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
    first = local - (local - midnight) % length
    return TimeSlots(first, length, max(1, -((first - until) // length)))


def peak_use(steps: Sequence[PlanStep], slots: TimeSlots) -> list[int]:
    """The most that is in use at any time within each slot: what looks free is free."""
    found = []
    at, used = 0, 0
    for column in range(slots.count):
        ends = slots.first + slots.length * (column + 1)
        begins = ends - slots.length
        peak = used
        while at < len(steps) and steps[at].at < ends:
            used = steps[at].used_gpus
            # A step at the very beginning replaces what was before; one within adds to what was seen.
            peak = used if steps[at].at <= begins else max(peak, used)
            at += 1
        found.append(peak)
    return found


def format_ruler(slots: TimeSlots) -> str:
    """'|14:00  |15:00', each mark above the column where that time begins; midnight is named by its day."""
    step = next((m for m in _LABEL_MINUTES if timedelta(minutes=m) >= slots.length * _LABEL_COLUMNS), 1440)
    line, before = "", None
    for column in range(slots.count):
        local = (slots.first + slots.length * column).astimezone()
        minutes = local.hour * 60 + local.minute
        stretch = (local.date(), minutes // step)
        # Where the clock was changed, columns may begin at odd times from then on, and none at a round one any more.
        is_odd = minutes % (slots.length // _MINUTE) > 0
        is_mark = minutes % step == 0 or (is_odd and before not in (None, stretch))
        before = stretch
        if not is_mark:
            continue
        label = f"|{local:%a}" if minutes < step else f"|{local:%H:%M}"
        if column + len(label) <= slots.count and (not line or column > len(line)):
            line = line.ljust(column) + label
    return line
