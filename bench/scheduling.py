"""`scheduling`: a week of a busy cluster, again and again, under plain FIFO, textbook EASY backfill and our planner.

Virtual time, fixed seeds, the real planner and the real forecasts, which start every week without history. Three kinds
of users, two loads, four seeds each: one week says little, because the ratio of two policies' waits varies by a sixth
between weeks that differ only in their seed.

The kinds differ in how much of their requested time they use: careful users about a half, usual ones a third, careless
ones a fifth. Studies of such systems agree that users request far more than they use, in few round values (Mu'alem and
Feitelson, IEEE TPDS 2001; Tsafrir, Etsion and Feitelson, JSSPP 2005 and IEEE TPDS 2007); how much more differs between
sites. The goal for the mean wait applies to the first two kinds. Careless users show what happens beyond; they have
their own figure and are part of the overall figure. Guarantees cost more the more users overstate their time, because
the plan keeps room until the requested ends, while EASY guarantees a start only to the first in the queue.
"""

import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from bench.figures import percentile, report
from bench.simulation.baseline_policies import Easy, Fifo
from bench.simulation.measurements import Estimate, Estimates, Waits
from bench.simulation.planner_policy import AllowedIdle, OurEstimates, Ours
from bench.simulation.simulator import simulate
from bench.simulation.traces import HOUR, Cluster, Job, People, make_trace

CLUSTER = Cluster(nodes=12)
DAYS = 7
LOADS = (0.6, 0.7)
SEEDS = (1, 2, 3, 4)
PEOPLE = {
    "careful": People(overstating=0.3, uncertainty=0.5, take_default=0.1, fail_early=0.05),
    "usual": People(),
    "careless": People(median_need=0.6 * HOUR, overstating=1.2, uncertainty=1.0, take_default=0.5),
}
HELD_TO = ("careful", "usual")
"""The kinds of users to which the goal for the mean wait applies."""
COLD = 100
"""How many forecasts at the start of a week count as cold."""


@dataclass(slots=True)
class Week:
    """One trace under one policy."""

    policy: str
    people: str
    load: float
    seed: int
    trace: Sequence[Job]
    waits: Waits = field(default_factory=Waits)
    estimates: list[Estimate] = field(default_factory=list)
    later: list[Estimate] = field(default_factory=list)
    allowed_idle: int = 0

    @property
    def mean_wait(self) -> float:
        return statistics.mean(self.waits.waited.values())


def run() -> None:
    report_weeks(measure())


def report_weeks(weeks: Sequence[Week]) -> None:
    by_policy = {name: [week for week in weeks if week.policy == name] for name in _POLICIES}
    for name, own in by_policy.items():
        _report_policy(name, own)
    _report_goals(by_policy["ours"], by_policy["EASY"])
    _report_forecasts(by_policy["ours"])


def measure() -> list[Week]:
    """Weeks are independent, so that all cores can work."""
    worlds = [(people, load, seed) for people in PEOPLE for load in LOADS for seed in SEEDS]
    with ProcessPoolExecutor() as pool:
        return [week for weeks in pool.map(_live, *zip(*worlds, strict=True)) for week in weeks]


def _live(people: str, load: float, seed: int) -> list[Week]:
    """The same week under each policy."""
    trace = make_trace(seed, load, DAYS, PEOPLE[people], CLUSTER)
    weeks = [Week(name, people, load, seed, trace) for name in _POLICIES]
    for week in weeks:
        _POLICIES[week.policy](week)
    return weeks


def true_share(estimates: Sequence[Estimate]) -> float:
    """In per cent: how often the start was inside the stated interval."""
    return 100 * statistics.mean(each.earliest <= each.waited <= each.latest_likely for each in estimates)


def _live_with_fifo(week: Week) -> None:
    policy = Fifo()
    estimates = Estimates(policy)
    simulate(CLUSTER, week.trace, policy, [week.waits, estimates])
    week.estimates = estimates.estimates


def _live_with_easy(week: Week) -> None:
    policy = Easy()
    estimates = Estimates(policy)
    simulate(CLUSTER, week.trace, policy, [week.waits, estimates])
    week.estimates = estimates.estimates


def _live_with_ours(week: Week) -> None:
    policy = Ours(CLUSTER)
    estimates, idle = OurEstimates(policy), AllowedIdle(policy)
    simulate(CLUSTER, week.trace, policy, [week.waits, estimates, idle])
    week.estimates, week.later, week.allowed_idle = estimates.estimates, estimates.later, idle.seconds


_POLICIES: dict[str, Callable[[Week], None]] = {
    "FIFO": _live_with_fifo,
    "EASY": _live_with_easy,
    "ours": _live_with_ours,
}


def _report_policy(name: str, weeks: Sequence[Week]) -> None:
    waits = [wait / HOUR for week in weeks for wait in week.waits.waited.values()]
    estimates = [each for week in weeks for each in week.estimates]
    late = [each.waited - each.latest for each in estimates if each.waited > each.latest]
    errors = [abs(each.waited - each.latest) / HOUR for each in estimates]
    _say(f"{name}: requests", len(waits), "requests")
    _say(f"{name}: requests that waited", len(estimates), "requests")
    _say(f"{name}: mean wait", statistics.mean(waits), "h")
    _say(f"{name}: wait, p95", percentile(waits, 0.95), "h")
    _say(f"{name}: use of the GPUs", 100 * statistics.mean(_use(week) for week in weeks), "%")
    _say(f"{name}: idle GPUs while a request that fits waited", sum(w.waits.idle_seconds for w in weeks), "s")
    _say(f"{name}: error of the start told on arrival (by planned ends), median", statistics.median(errors), "h")
    _say(f"{name}: error of the start told on arrival (by planned ends), p90", percentile(errors, 0.9), "h")
    goal = 0 if name == "ours" else None
    report("scheduling", f"{name}: promises broken (started later than told on arrival)", len(late), "requests", goal)
    if late:
        _say(f"{name}: the most that one started later than told", max(late), "s")


def _report_goals(ours: Sequence[Week], easy: Sequence[Week]) -> None:
    pairs = list(zip(ours, easy, strict=True))
    for people in PEOPLE:
        own = [(mine, theirs) for mine, theirs in pairs if mine.people == people]
        used = sum(job.used for mine, _ in own for job in mine.trace)
        requested = sum(job.requested for mine, _ in own for job in mine.trace)
        _say(f"{people} people: time used of the time asked for", 100 * used / requested, "%")
        _say(f"mean wait of ours / EASY's, {people} people", _ratio(own), "x")
        ratios = [mine.mean_wait / theirs.mean_wait for mine, theirs in own]
        _say(f"mean wait of ours / EASY's, {people} people, lowest week", min(ratios), "x")
        _say(f"mean wait of ours / EASY's, {people} people, highest week", max(ratios), "x")
    published = [pair for pair in pairs if pair[0].people in HELD_TO]
    report("scheduling", f"mean wait of ours / EASY's, {' and '.join(HELD_TO)}", _ratio(published), "x", 1.1)
    _say("mean wait of ours / EASY's, all kinds", _ratio(pairs), "x")
    allowed = sum(week.allowed_idle for week in ours)
    report("scheduling", "ours: idle GPUs that the rules would have allowed to use", allowed, "s", 0)


def _ratio(pairs: Sequence[tuple[Week, Week]]) -> float:
    """Of the mean waits over all these weeks."""
    return sum(mine.mean_wait for mine, _ in pairs) / sum(theirs.mean_wait for _, theirs in pairs)


def _report_forecasts(ours: Sequence[Week]) -> None:
    everything = [each for week in ours for each in week.estimates]
    cold = [each for week in ours for each in week.estimates[:COLD]]
    later = [each for week in ours for each in week.later]
    for what, estimates in (("", everything), (f", first {COLD} of each week", cold), (", told again", later)):
        report("scheduling", f"expected: median error / latest's{what}", _error_ratio(estimates), "x", 0.5)
        report("scheduling", f"interval true (at least){what}", true_share(estimates), "%", 75, at_most=False)
        report("scheduling", f"interval true (at most){what}", true_share(estimates), "%", 85)
    worst = max(_error_ratio(week.estimates) for week in ours)
    report("scheduling", "expected: median error / latest's, worst week", worst, "x", 0.5)
    shares = [true_share(week.estimates) for week in ours]
    _say("interval true, lowest week", min(shares), "%")
    _say("interval true, highest week", max(shares), "%")
    errors = [abs(each.waited - each.expected) / HOUR for each in everything]
    _say("expected: error, median", statistics.median(errors), "h")
    _say("expected: error, p90", percentile(errors, 0.9), "h")
    widths = [(each.latest_likely - each.earliest) / HOUR for each in everything]
    _say("width of the interval, median", statistics.median(widths), "h")


def _error_ratio(estimates: Sequence[Estimate]) -> float:
    expected = statistics.median(abs(each.waited - each.expected) for each in estimates)
    return expected / statistics.median(abs(each.waited - each.latest) for each in estimates)


def _use(week: Week) -> float:
    """Until the last job left: a policy with longer waits also takes longer overall."""
    end = max(job.arrives + week.waits.waited[job.number] + job.occupies for job in week.trace)
    return week.waits.used_gpu_seconds / (end * CLUSTER.gpus)


def _say(metric: str, value: float, unit: str) -> None:
    report("scheduling", metric, value, unit, None)
