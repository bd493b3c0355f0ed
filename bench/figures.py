"""Reporting of figures, and percentiles."""

import json
import math
from collections.abc import Sequence


def report(bench: str, metric: str, value: float, unit: str, goal: float | None, *, at_most: bool = True) -> None:
    """Print one line per figure. `goal` None: for information only."""
    ok = goal is None or (value <= goal if at_most else value >= goal)
    line = {"bench": bench, "metric": metric, "value": round(value, 4), "unit": unit, "goal": goal, "ok": ok}
    print(json.dumps(line), flush=True)


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile, which is always a measured value."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
