"""Habits: how much of the time they asked for people of one GPU type really stay.

Learnt from everybody who left, forgotten slowly, and replaced by a broad guess while little is known. They answer one
question: whoever has stayed so long will typically stay how much longer? They refuse to know who the people are.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate

_USAGE_BINS = 20
_USAGE_PRIOR = (2.0, 1.6, 1.3, 1.1, 1.0, 0.9, 0.8, 0.7, 0.7, 0.6, 0.6, 0.5, 0.5, 0.4, 0.4, 0.4, 0.3, 0.3, 0.3, 0.3, 2.3)
"""The guess, which weighs as much as seventeen people: many leave at once, most before half-time, some never."""
_MOST_SAMPLES = 1000.0
"""When this many are known, all of them are made to weigh half: people change."""


@dataclass(frozen=True, slots=True)
class UsageRatios:
    counts: tuple[float, ...] = _USAGE_PRIOR
    """How many left in the first twentieth of their time, in the second, …, and how many stayed to the end."""

    def learn(self, used: timedelta, asked: timedelta) -> "UsageRatios":
        """`asked`: from the beginning to the planned end as it last was, extensions included."""
        if asked <= timedelta(0):
            return self
        counts = list(self.counts)
        counts[min(_USAGE_BINS, max(0, int(used / asked * _USAGE_BINS)))] += 1.0
        if sum(counts) > _MOST_SAMPLES:
            counts = [count / 2 for count in counts]
        return UsageRatios(tuple(counts))

    def typical(self) -> "TypicalUsage":
        return TypicalUsage(self.counts)


class TypicalUsage:
    """The habits made ready to be asked thousands of times."""

    __slots__ = ("_all", "_counts", "_left")

    def __init__(self, counts: Sequence[float] = _USAGE_PRIOR) -> None:
        self._counts = counts
        self._left = list(accumulate(counts[:_USAGE_BINS], initial=0.0))
        """How many have left by the end of each twentieth, beginning with none."""
        self._all = sum(counts)

    def remaining(self, asked: float, elapsed: float = 0.0) -> float:
        """How much longer half of those stay who have stayed so long; never beyond what they asked for. In whatever
        unit of time the question is put."""
        if asked <= 0 or elapsed >= asked:
            return 0.0
        gone = max(0.0, elapsed / asked)
        return max(0.0, asked * (self._median_beyond(gone) - gone))

    def _median_beyond(self, gone: float) -> float:
        """The share of their time that half of those exceed who exceed `gone`."""
        step = int(gone * _USAGE_BINS)
        already = self._left[step] + (gone * _USAGE_BINS - step) * self._counts[step]
        middle = (already + self._all) / 2
        if middle >= self._left[_USAGE_BINS]:
            return 1.0
        step = bisect_right(self._left, middle) - 1
        return (step + (middle - self._left[step]) / self._counts[step]) / _USAGE_BINS
