"""How a figure is reported, and the arithmetic of percentiles."""

import json
import math
from collections.abc import Sequence


def report(bench: str, metric: str, value: float, unit: str, goal: float | None, *, at_most: bool = True) -> None:
    """One line per figure. `goal` None: printed for the record, with nothing to hold it to."""
    ok = goal is None or (value <= goal if at_most else value >= goal)
    line = {"bench": bench, "metric": metric, "value": round(value, 4), "unit": unit, "goal": goal, "ok": ok}
    print(json.dumps(line), flush=True)


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile: a value that was really measured."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
