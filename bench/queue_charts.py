"""`python -m bench.queue_charts`: draws the charts of docs/queue.md from the scheduling benchmark."""

import random
from collections.abc import Sequence

from bench.machine import ROOT
from bench.scheduling import DAYS, Week, measure, true_share
from bench.simulation.measurements import Estimate
from bench.simulation.svg_charts import Axis, Chart
from bench.simulation.traces import DAY, HOUR

_COLOURS = {"FIFO": "#999999", "EASY": "#d98b28", "ours": "#2468b0"}
_WAITS = ((1 / 60, "1 min"), (1 / 6, "10 min"), (1, "1 h"), (4, "4 h"), (12, "12 h"), (48, "2 days"))
_DOTS = 700


def draw(weeks: Sequence[Week]) -> None:
    ours = [week for week in weeks if week.policy == "ours"]
    folder = ROOT / "docs" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    charts = {"queue-waits": _waits(weeks), "queue-estimates": _estimates(ours), "queue-interval": _interval(ours)}
    for name, chart in charts.items():
        (folder / f"{name}.svg").write_text(chart.svg(), encoding="utf-8")
        print(f"docs/images/{name}.svg")


def _waits(weeks: Sequence[Week]) -> Chart:
    chart = Chart(
        "Share of requests that have started, by waiting time",
        Axis("wait", 1 / 60, 48, _WAITS, logarithmic=True),
        Axis("requests that have started", 0, 1, [(part / 4, f"{part * 25} %") for part in range(5)]),
    )
    for policy, colour in _COLOURS.items():
        waits = sorted(wait / HOUR for week in weeks if week.policy == policy for wait in week.waits.waited.values())
        steps = [waits[round(part * (len(waits) - 1) / 400)] for part in range(401)]
        chart.curve([(wait, part / 400) for part, wait in enumerate(steps)], colour, policy)
    return chart


def _estimates(ours: Sequence[Week]) -> Chart:
    axis = Axis("", 1 / 60, 96, _WAITS, logarithmic=True)
    chart = Chart(
        "Estimates at submit against actual waits",
        Axis("actual wait", axis.least, axis.most, axis.marks, logarithmic=True),
        Axis("estimated wait", axis.least, axis.most, axis.marks, logarithmic=True),
    )
    estimates = [each for week in ours for each in week.estimates]
    chosen = random.Random(1).sample(estimates, min(_DOTS, len(estimates)))
    chart.dots([(each.waited / HOUR, each.latest / HOUR) for each in chosen], "#b9553b", "latest")
    chart.dots([(each.waited / HOUR, each.expected / HOUR) for each in chosen], "#2468b0", "expected")
    chart.curve([(axis.least, axis.least), (axis.most, axis.most)], "#333333", "as estimated", dashed=True)
    return chart


def _interval(ours: Sequence[Week]) -> Chart:
    """By day, because forecasts start every week without history."""
    days = [(day + 0.5, f"day {day + 1}") for day in range(DAYS)]
    chart = Chart(
        "How often the start was inside the 80 % interval",
        Axis("day of submit; the forecast starts without history", 0, DAYS, days),
        Axis("starts within the interval", 50, 100, [(share, f"{share} %") for share in range(50, 101, 10)]),
    )
    chart.band(75, 85, "#dcebd5", "goal")
    chart.curve(_by_day([each for week in ours for each in week.estimates]), "#2468b0", "estimate at submit")
    chart.curve(_by_day([each for week in ours for each in week.later]), "#8d5bb5", "later estimates")
    return chart


def _by_day(estimates: Sequence[Estimate]) -> list[tuple[float, float]]:
    points = []
    for day in range(DAYS):
        own = [each for each in estimates if int(each.job.arrives // DAY) == day]
        if len(own) >= 30:
            points.append((day + 0.5, true_share(own)))
    return points


if __name__ == "__main__":
    draw(measure())
