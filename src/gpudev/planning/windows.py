"""An ordered index of windows: stretches of time in which a node has enough free for one size of request.

It answers "the first window, in order, that is at least this long" without looking at every window. Windows live in
blocks of a few dozen, each of which knows its longest, so that whole blocks of short holes are passed over at once.
It refuses to know what a key means beyond its order.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

FOREVER = 1 << 62
"""The length of a window that never closes, and the time at which it does not."""
_BLOCK = 64
"""Splits at twice this. Measured: 64 and 96 are alike; smaller costs walking, larger costs moving."""


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
        """Every (key, length) that is long enough, by key. The index must not change meanwhile."""
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
        """The key must be there."""
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
        if length == self._longest[block] and length not in lengths:  # most often another one is as long
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
