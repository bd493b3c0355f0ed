"""How good estimates were, from what was told and what happened."""

from datetime import timedelta

from gpudev.domain.queue import DelayCause, EstimateOutcome, EstimateRecord, TimeInterval
from gpudev.planning.queue.eta_report import EstimateErrors, make_eta_reports
from support.planner.situations import NOW, rid

MINUTE = timedelta(minutes=1)


def outcome(
    number: int,
    *,
    expected: float = 30,
    latest: float = 60,
    started: float | None = 30,
    because: DelayCause | None = None,
    gpu_type: str = "h100",
) -> EstimateOutcome:
    """Times in minutes from now; the interval is ten minutes to either side of what is expected."""
    span = TimeInterval(NOW + expected * MINUTE, NOW + (expected - 10) * MINUTE, NOW + (expected + 10) * MINUTE)
    told = EstimateRecord(rid(number), NOW, 1, NOW + latest * MINUTE, span, 60.0, True, because)
    return EstimateOutcome(gpu_type, told, None if started is None else NOW + started * MINUTE)


def test_errors_are_medians_and_ninetieth_percentiles_of_what_was_told_first() -> None:
    outcomes = [outcome(number, expected=30, latest=60, started=30 + number) for number in range(1, 11)]
    outcomes.append(outcome(1, expected=999))  # told later: it is not judged
    (everything, h100) = make_eta_reports(outcomes, NOW)
    assert (everything.gpu_type, h100.gpu_type, everything.started) == (None, "h100", 10)
    assert everything.expected == EstimateErrors(5.0, 9.0)
    assert everything.latest == EstimateErrors(24.0, 28.0)
    assert everything.in_interval == 1.0


def test_a_start_outside_the_interval_counts_against_it() -> None:
    (everything, _) = make_eta_reports([outcome(1, started=30), outcome(2, started=45)], NOW)
    assert everything.in_interval == 0.5
    assert everything.breaches == ()


def test_a_start_after_the_promise_is_a_breach_with_its_cause() -> None:
    late = [outcome(1, latest=20, started=61), outcome(1, latest=90, started=61, because=DelayCause.NODE_LOST)]
    (everything, _) = make_eta_reports(late, NOW + 2 * timedelta(hours=1))
    (breach,) = everything.breaches
    assert (breach.reservation_id, breach.cause) == (rid(1), DelayCause.NODE_LOST)
    assert breach.latest == NOW + 20 * MINUTE
    assert everything.breaches_by_cause() == {"a node was lost": 1}


def test_a_breach_that_nobody_explained_says_so() -> None:
    (everything, _) = make_eta_reports([outcome(1, latest=20, started=21)], NOW)
    assert everything.breaches_by_cause() == {"unexplained": 1}


def test_a_promise_that_was_made_better_binds_as_well() -> None:
    """Promised 60, then 40: a start at 50 is late."""
    (everything, _) = make_eta_reports([outcome(1, latest=60, started=50), outcome(1, latest=40, started=50)], NOW)
    assert len(everything.breaches) == 1


def test_whoever_waits_beyond_the_promise_is_a_breach_already() -> None:
    waiting = [outcome(1, latest=20, started=None), outcome(2, latest=20, started=None, gpu_type="t4")]
    assert make_eta_reports(waiting, NOW + 19 * MINUTE)[0].breaches == ()
    everything, h100, t4 = make_eta_reports(waiting, NOW + 21 * MINUTE)
    assert [len(part.breaches) for part in (everything, h100, t4)] == [2, 1, 1]
    assert everything.started == 0
    assert everything.expected == EstimateErrors(None, None)
    assert everything.in_interval is None


def test_nothing_told_is_nothing_to_judge() -> None:
    (everything,) = make_eta_reports([], NOW)
    assert (everything.started, everything.breaches) == (0, ())
