"""The track record of forecasts: what was told beside what happened, and what that means for the next one.

A forecast begins as the start in a *typical* plan, in which everybody leaves when people typically do. How far the
truth was from that, as a ratio, is remembered for the latest outcomes, apart for short and long waits; the next
interval lies between the ratios that were seen. Since waits in one queue go wrong together, that alone would not keep
the word "80 %": which of the seen ratios are the bounds also follows, slowly, how often the told interval was true.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

INTERVAL = 0.8
"""How often the told interval is to be true."""
_TAIL = (1 - INTERVAL) / 2
_BUCKETS = (60.0, 15 * 60.0, 60 * 60.0, 3 * 60 * 60.0)
"""Typical waits, in seconds, at which one bucket ends and the next begins."""
_OUTCOMES_PER_BUCKET = 500
"""Outcomes per bucket."""
_ENOUGH = 60
"""Outcomes of a bucket with which it no longer needs the guess."""
_RATIO_PRIOR = (-1.6, -1.3, -1.1, -0.9, -0.7, -0.6, -0.5, -0.4, -0.3, -0.2, -0.1, 0.0, 0.1, 0.2, 0.4, 0.7, 1.2)
"""The guess: a broad spread of logarithms of ratios, a little to the early side."""
_IMMEDIATE_RATIO_PRIOR = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4, 1.6, 1.8, 2.1, 2.4)
"""The guess for those who would start at once in a typical plan: they do wait, so it can only be longer."""
_LEVEL_STEP = 0.003
"""How far one outcome moves a bound's level."""
_LEAST_SCALE, _SHARE_OF_BOUND = 120.0, 0.05


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a request was told, as seconds from then on. Kept until it starts; then it is learnt from."""

    typical: float
    bound: float
    """The wait until `latest`."""
    earliest: float
    expected: float
    latest_likely: float


@dataclass(frozen=True, slots=True)
class TrackRecord:
    ratios: tuple[tuple[float, ...], ...] = ((),) * (len(_BUCKETS) + 1)
    """By bucket, the oldest first: logarithms of how much longer it took than typical."""
    levels: tuple[float, float, float] = (_TAIL, 0.5, 1 - _TAIL)
    """Which shares of the seen ratios are taken for the bounds and the middle."""

    def learn(self, prediction: Prediction, waited: float) -> "TrackRecord":
        bucket = bisect_right(_BUCKETS, prediction.typical)
        scale = _scale(prediction.bound)
        ratio = math.log((max(0.0, waited) + scale) / (prediction.typical + scale))
        ratios = list(self.ratios)
        ratios[bucket] = (*ratios[bucket], ratio)[-_OUTCOMES_PER_BUCKET:]
        low, middle, high = self.levels
        low += _LEVEL_STEP * (_TAIL - (waited < prediction.earliest))
        middle += _LEVEL_STEP * (0.5 - (waited < prediction.expected))
        high -= _LEVEL_STEP * (_TAIL - (waited > prediction.latest_likely))
        levels = (_clamp(low, 0.0, 0.3), _clamp(middle, 0.3, 0.7), _clamp(high, 0.7, 1.0))
        return TrackRecord(tuple(ratios), levels)

    def calibration(self) -> "Calibration":
        priors = (_IMMEDIATE_RATIO_PRIOR, *(_RATIO_PRIOR,) * len(_BUCKETS))
        return Calibration(
            tuple(_factors(ratios, prior, self.levels) for ratios, prior in zip(self.ratios, priors, strict=True))
        )


@dataclass(frozen=True, slots=True)
class Calibration:
    """A track record made ready to be asked thousands of times."""

    factors: tuple[tuple[float, float, float], ...]
    """By bucket: what a typical wait is multiplied with for the earliest, the expected and the latest likely one."""

    def predict(self, typical: float, bound: float) -> Prediction:
        """Waits in seconds. Never beyond the bound, which is a promise."""
        scale = _scale(bound)
        stretched = typical + scale
        low, middle, high = self.factors[bisect_right(_BUCKETS, typical)]
        return Prediction(
            typical,
            bound,
            earliest=_clamp(stretched * low - scale, 0.0, bound),
            expected=_clamp(stretched * middle - scale, 0.0, bound),
            latest_likely=_clamp(stretched * high - scale, 0.0, bound),
        )


def _scale(bound: float) -> float:
    """Added to both sides of a ratio: beside a bound of hours, typical waits of one or of five minutes are alike."""
    return _LEAST_SCALE + _SHARE_OF_BOUND * bound


def _factors(
    ratios: tuple[float, ...], prior: tuple[float, ...], levels: tuple[float, float, float]
) -> tuple[float, float, float]:
    seen = sorted(ratios if len(ratios) >= _ENOUGH else (*ratios, *prior))
    low, middle, high = levels
    return math.exp(_quantile(seen, low)), math.exp(_quantile(seen, middle)), math.exp(_quantile(seen, high))


def _quantile(ordered: Sequence[float], level: float) -> float:
    """The nearest-rank quantile."""
    return ordered[min(len(ordered), max(1, math.ceil(level * len(ordered)))) - 1]


def _clamp(value: float, least: float, most: float) -> float:
    return max(least, min(most, value))
