"""`python -m bench.pictures`: draws the pictures of docs/queue.md from the weeks of the scheduling benchmark."""

import random
from collections.abc import Sequence

from bench.machine import ROOT
from bench.scheduling import DAYS, Week, measure, true_share
from bench.simulation.drawing import Axis, Chart
from bench.simulation.measuring import Estimate
from bench.simulation.traces import DAY, HOUR

_COLOURS = {"FIFO": "#999999", "EASY": "#d98b28", "ours": "#2468b0"}
_WAITS = ((1 / 60, "1 min"), (1 / 6, "10 min"), (1, "1 h"), (4, "4 h"), (12, "12 h"), (48, "2 days"))
_DOTS = 700


def draw(weeks: Sequence[Week]) -> None:
    ours = [week for week in weeks if week.policy == "ours"]
    folder = ROOT / "docs" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {"queue-waits": _waits(weeks), "queue-told": _told(ours), "queue-interval": _interval(ours)}
    for name, chart in pictures.items():
        (folder / f"{name}.svg").write_text(chart.svg(), encoding="utf-8")
        print(f"docs/images/{name}.svg")


def _waits(weeks: Sequence[Week]) -> Chart:
    chart = Chart(
        "How many have started after how long",
        Axis("wait", 1 / 60, 48, _WAITS, logarithmic=True),
        Axis("requests that have started", 0, 1, [(part / 4, f"{part * 25} %") for part in range(5)]),
    )
    for policy, colour in _COLOURS.items():
        waits = sorted(wait / HOUR for week in weeks if week.policy == policy for wait in week.waits.waited.values())
        steps = [waits[round(part * (len(waits) - 1) / 400)] for part in range(401)]
        chart.curve([(wait, part / 400) for part, wait in enumerate(steps)], colour, policy)
    return chart


def _told(ours: Sequence[Week]) -> Chart:
    axis = Axis("", 1 / 60, 96, _WAITS, logarithmic=True)
    chart = Chart(
        "What people were told on arrival, and how long it took",
        Axis("wait as it turned out", axis.least, axis.most, axis.marks, logarithmic=True),
        Axis("wait as told", axis.least, axis.most, axis.marks, logarithmic=True),
    )
    estimates = [each for week in ours for each in week.estimates]
    chosen = random.Random(1).sample(estimates, min(_DOTS, len(estimates)))
    chart.dots([(each.waited / HOUR, each.latest / HOUR) for each in chosen], "#b9553b", "latest")
    chart.dots([(each.waited / HOUR, each.expected / HOUR) for each in chosen], "#2468b0", "expected")
    chart.curve([(axis.least, axis.least), (axis.most, axis.most)], "#333333", "as told", dashed=True)
    return chart


def _interval(ours: Sequence[Week]) -> Chart:
    """By day, since the forecasts begin every week knowing nothing."""
    days = [(day + 0.5, f"day {day + 1}") for day in range(DAYS)]
    chart = Chart(
        "How often the 80 % interval was true",
        Axis("day of arrival; at the beginning nothing is known", 0, DAYS, days),
        Axis("starts within the interval", 50, 100, [(share, f"{share} %") for share in range(50, 101, 10)]),
    )
    chart.band(75, 85, "#dcebd5", "goal")
    chart.curve(_by_day([each for week in ours for each in week.estimates]), "#2468b0", "told on arrival")
    chart.curve(_by_day([each for week in ours for each in week.later]), "#8d5bb5", "told again later")
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
