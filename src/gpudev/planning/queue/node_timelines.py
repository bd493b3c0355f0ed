"""Free units of each node over time, and the earliest slot for a request.

A window is a span of time in which a node has enough free units for one size of request. An ordered index finds the
first window of a given length without visiting every window: windows are stored in blocks of a few dozen, and each
block knows its longest one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

FOREVER = 1 << 62
"""Length and end of a window that never closes."""
_BLOCK = 64
"""A block splits at twice this size. Measured: 64 and 96 perform alike; smaller ones cost walking, larger ones
moving."""


class WindowIndex:
    __slots__ = ("_firsts", "_keys", "_lengths", "_longest")

    def __init__(self, windows: Iterable[tuple[int, int]]) -> None:
        """Of (key, length)."""
        ordered = sorted(windows)
        blocks = [ordered[at : at + _BLOCK] for at in range(0, len(ordered), _BLOCK)] or [[]]
        self._keys = [[key for key, _ in block] for block in blocks]
        self._lengths = [[length for _, length in block] for block in blocks]
        self._firsts = [block[0] if block else 0 for block in self._keys]
        self._longest = [max(block, default=0) for block in self._lengths]

    def first_at_least(self, length: int) -> int | None:
        """The smallest key whose window is long enough."""
        for block, longest in enumerate(self._longest):
            if longest >= length:
                for position, own in enumerate(self._lengths[block]):
                    if own >= length:
                        return self._keys[block][position]
        return None

    def all_at_least(self, length: int) -> Iterator[tuple[int, int]]:
        """Every (key, length) that is long enough, by key. Do not change the index during the iteration."""
        for block, longest in enumerate(self._longest):
            if longest >= length:
                for position, own in enumerate(self._lengths[block]):
                    if own >= length:
                        yield self._keys[block][position], own

    def add(self, key: int, length: int) -> None:
        block = max(0, bisect_right(self._firsts, key) - 1)
        keys = self._keys[block]
        position = bisect_left(keys, key)
        keys.insert(position, key)
        self._lengths[block].insert(position, length)
        if position == 0:
            self._firsts[block] = key
        self._longest[block] = max(self._longest[block], length)
        if len(keys) > 2 * _BLOCK:
            self._split(block)

    def remove(self, key: int) -> None:
        """The key must exist."""
        block = max(0, bisect_right(self._firsts, key) - 1)
        keys, lengths = self._keys[block], self._lengths[block]
        position = bisect_left(keys, key)
        del keys[position]
        length = lengths.pop(position)
        if not keys:
            self._drop(block)
            return
        if position == 0:
            self._firsts[block] = keys[0]
        if length == self._longest[block] and length not in lengths:  # usually another one is as long
            self._longest[block] = max(lengths)

    def _split(self, block: int) -> None:
        for parts in (self._keys, self._lengths):
            whole = parts[block]
            parts[block : block + 1] = [whole[:_BLOCK], whole[_BLOCK:]]
        self._firsts.insert(block + 1, self._keys[block + 1][0])
        self._longest[block : block + 1] = [max(self._lengths[block]), max(self._lengths[block + 1])]

    def _drop(self, block: int) -> None:
        if len(self._keys) == 1:
            self._longest[block] = 0
            return
        for parts in (self._keys, self._lengths, self._firsts, self._longest):
            del parts[block]


# Timelines of all nodes of one GPU type.
#
# Times are whole microseconds from now, so that they compare exactly and fast. It counts units, not single GPUs, and
# knows the ends of allocations, so that waits can be explained.


# A window's key orders by start, then by the node's free units at that moment (the fullest node is filled first), then
# by the node's name. It must not depend on the present state of a node that is needed later: replanning would then
# choose other nodes and break promises although every reservation ended on time.
_RANK_BITS = 20
_UNIT_BITS = 12
_RANK_MASK = (1 << _RANK_BITS) - 1
_START_SHIFT = _RANK_BITS + _UNIT_BITS


@dataclass(frozen=True, slots=True)
class TimeSlot:
    """A start, and the ranks of the nodes."""

    start: int
    ranks: tuple[int, ...]


class NodeTimeline:
    """Free units of one node over time, as a step function: `free[i]` holds from `times[i]` until `times[i + 1]`."""

    __slots__ = ("free", "rank", "taken", "times", "units", "windows")

    def __init__(self, rank: int, units: int, capacity: int, ends: Iterable[tuple[int, int]]) -> None:
        """`capacity`: free units once all allocations have ended; `ends`: (time, units) of current allocations."""
        self.rank = rank
        self.units = units
        self.times = [0]
        self.free = [capacity]
        gains: dict[int, int] = {}
        for time, gain in ends:
            gains[time] = gains.get(time, 0) + gain
        for time in sorted(gains, reverse=True):
            self.times.insert(1, time)
            self.free.insert(0, self.free[0] - gains[time])
        self.taken = False
        """Whether a planned start has taken units; until then free units only grow."""
        self.windows: dict[int, dict[int, int]] = {}
        """By size: the windows of `find_windows` that are in the index."""

    def take(self, start: int, end: int, units: int) -> None:
        """Negative units return what was taken."""
        self.taken = True
        times, free = self.times, self.free
        first = bisect_left(times, start)
        if first == len(times) or times[first] != start:
            times.insert(first, start)
            free.insert(first, free[first - 1])
        last = bisect_left(times, end, first)
        if last == len(times) or times[last] != end:
            times.insert(last, end)
            free.insert(last, free[last - 1])
        for step in range(first, last):
            free[step] -= units
        # Drop steps equal to the one before: keeps the list short.
        if free[last] == free[last - 1]:
            del times[last], free[last]
        if first and free[first] == free[first - 1]:
            del times[first], free[first]

    def min_free(self, start: int, end: int) -> int:
        first = bisect_right(self.times, start) - 1
        last = bisect_left(self.times, end, first)
        return min(self.free[first:last])

    def free_at(self, moment: int) -> int:
        return self.free[bisect_right(self.times, moment) - 1]

    def free_duration(self, moment: int, units: int) -> int:
        """How long this many units are free from that moment on."""
        for step in range(bisect_right(self.times, moment) - 1, len(self.times)):
            if self.free[step] < units:
                return max(0, self.times[step] - moment)
        return FOREVER

    def drop_before(self, moment: int) -> None:
        """Forgets the past."""
        past = bisect_right(self.times, moment) - 1
        if past > 0:
            del self.times[:past], self.free[:past]

    def free_before(self, moment: int) -> int:
        step = bisect_left(self.times, moment) - 1
        return self.free[step] if step >= 0 else 0

    def first_window(self, units: int) -> Iterable[tuple[int, int]]:
        """The only window of a line from which no units were taken."""
        step = bisect_left(self.free, units)
        return [(self._key(step), FOREVER)] if step < len(self.free) else []

    def find_windows(self, units: int) -> dict[int, int]:
        """All windows with at least `units` free, as key → length."""
        found: dict[int, int] = {}
        times, rank = self.times, self.rank
        opened = -1
        for step, free in enumerate(self.free):
            if free >= units:
                if opened < 0:
                    opened, key = step, (times[step] << _UNIT_BITS | free) << _RANK_BITS | rank  # as `_key` makes it
            elif opened >= 0:
                found[key] = times[step] - times[opened]
                opened = -1
        if opened >= 0:
            found[key] = FOREVER
        return found

    def _key(self, step: int) -> int:
        return (self.times[step] << _UNIT_BITS | self.free[step]) << _RANK_BITS | self.rank


class Timetable:
    def __init__(self, timelines: Sequence[NodeTimeline], sizes: Iterable[int]) -> None:
        """`timelines` by rank (in order of node names); `sizes`: units per node that will be requested."""
        self.timelines = timelines
        self.now = 0
        """Slots are not found before it. It may be advanced: windows that opened before are open now."""
        self._sizes = sorted(set(sizes))
        for line in timelines:
            if line.taken:
                line.windows = {size: line.find_windows(size) for size in self._sizes}
        self._indexes = {size: WindowIndex(self._windows(size, timelines)) for size in self._sizes}
        self._indexes_among: dict[frozenset[int], dict[int, WindowIndex]] = {}
        """The same for subsets of nodes, built on first use."""

    def _windows(self, size: int, timelines: Iterable[NodeTimeline]) -> Iterator[tuple[int, int]]:
        for line in timelines:
            yield from line.windows[size].items() if line.windows else line.first_window(size)

    def find_slot(
        self, units: int, node_count: int, duration: int, ranks: frozenset[int] | None = None
    ) -> TimeSlot | None:
        """The earliest slot. None: there will never be one. `ranks`: only on these nodes."""
        index = self._indexes[units] if ranks is None else self._index_among(ranks, units)
        if node_count > 1:
            return self._find_gang(index, units, node_count, duration)
        if self.now:
            return self._find_later(index, duration)
        key = index.first_at_least(duration)
        return None if key is None else TimeSlot(key >> _START_SHIFT, (key & _RANK_MASK,))

    def _index_among(self, ranks: frozenset[int], size: int) -> WindowIndex:
        indexes = self._indexes_among.setdefault(ranks, {})
        index = indexes.get(size)
        if index is None:
            index = indexes[size] = WindowIndex(self._windows(size, [self.timelines[rank] for rank in sorted(ranks)]))
        return index

    def _find_later(self, index: WindowIndex, duration: int) -> TimeSlot | None:
        """After time has advanced: of open windows only the rest counts, and the fullest node is determined now."""
        now = self.now
        fullest: tuple[int, int] | None = None
        for key, length in index.all_at_least(duration):
            start, rank = key >> _START_SHIFT, key & _RANK_MASK
            if start > now:
                if fullest is None:
                    return TimeSlot(start, (rank,))
                break
            if start + length >= now + duration:
                candidate = (self.timelines[rank].free_at(now), rank)
                if fullest is None or candidate < fullest:
                    fullest = candidate
        return None if fullest is None else TimeSlot(now, (fullest[1],))

    def whole_nodes_free_now(self, units: int, duration: int) -> set[int]:
        """Whole nodes of this size that are free from now on for the duration."""
        ranks = set()
        for key, length in self._indexes[units].all_at_least(duration):
            start, rank = key >> _START_SHIFT, key & _RANK_MASK
            if start > self.now:
                break
            if start + length >= self.now + duration and self.timelines[rank].units == units:
                ranks.add(rank)
        return ranks

    def ensure_size(self, size: int) -> None:
        """Adds the index of a new size."""
        if size in self._indexes:
            return
        self._sizes = sorted([*self._sizes, size])
        for line in self.timelines:
            if line.windows:
                line.windows[size] = line.find_windows(size)
        self._indexes[size] = WindowIndex(self._windows(size, self.timelines))

    def is_free(self, slot: TimeSlot, units: int, duration: int) -> bool:
        end = slot.start + duration
        return all(self.timelines[rank].min_free(slot.start, end) >= units for rank in slot.ranks)

    def has_free_units_before(self, slot: TimeSlot, units: int) -> bool:
        """Whether one of its nodes has free units right before it, so that an earlier slot may exist together with its
        own."""
        return any(self.timelines[rank].free_before(slot.start) >= units for rank in slot.ranks)

    def take(self, slot: TimeSlot, units: int, duration: int) -> None:
        """Negative units return what was taken."""
        end = slot.start + duration
        for rank in slot.ranks:
            line = self.timelines[rank]
            if not line.windows:  # built lazily: most lines of a short queue's plan are never taken from
                line.windows = {size: line.find_windows(size) for size in self._sizes}
            line.drop_before(self.now)
            line.take(slot.start, end, units)
            self._reindex(line)

    def _find_gang(self, index: WindowIndex, units: int, node_count: int, duration: int) -> TimeSlot | None:
        """The earliest moment at which enough whole nodes are free at once.

        A node's windows never overlap, so windows open at one moment belong to different nodes.
        """
        open_until: list[tuple[int, int]] = []  # (latest possible start, key)
        moment = self.now
        for key, length in index.all_at_least(duration):
            if self.timelines[key & _RANK_MASK].units != units:
                continue
            start = key >> _START_SHIFT
            if start + length < moment + duration:
                continue  # no longer long enough
            if start > moment:
                if len(open_until) >= node_count:
                    break
                moment = start
                while open_until and open_until[0][0] < moment:
                    heappop(open_until)
            heappush(open_until, (start + length - duration, key))
            if not moment and len(open_until) == node_count:
                break  # all windows are open, so they are ordered by name
        if len(open_until) < node_count:
            return None
        ranks = sorted(key & _RANK_MASK for _, key in open_until)
        return TimeSlot(moment, tuple(ranks[:node_count]))

    def _reindex(self, line: NodeTimeline) -> None:
        for size, index in self._indexes.items():
            old = line.windows[size]
            new = line.find_windows(size)
            if old == new:
                continue
            _replace_windows(index, old, new)
            for ranks, indexes in self._indexes_among.items():
                if line.rank in ranks and size in indexes:
                    _replace_windows(indexes[size], old, new)
            line.windows[size] = new


def _replace_windows(index: WindowIndex, old: dict[int, int], new: dict[int, int]) -> None:
    for key, length in old.items():
        if new.get(key) != length:
            index.remove(key)
    for key, length in new.items():
        if old.get(key) != length:
            index.add(key, length)
