"""How the planning loop rests."""

import pytest

from gpudev.processor.planning_loop import DutyCycle


def test_a_single_long_turn_delays_nobody() -> None:
    assert DutyCycle().rest_after(10.0, 10.045) == 0


def test_a_loop_that_never_stops_works_a_quarter_of_the_time() -> None:
    pacing, now, worked = DutyCycle(), 0.0, 0.0
    while now < 60:
        rest = pacing.rest_after(now, now + 0.03)
        worked += 0.03
        now += 0.03 + rest
    assert worked / now == pytest.approx(0.25, abs=0.01)


def test_waiting_for_a_wake_up_counts_as_rest() -> None:
    pacing, now = DutyCycle(), 0.0
    for _ in range(100):
        assert pacing.rest_after(now, now + 0.03) == 0
        now += 0.03 + 0.09


def test_nobody_waits_long_however_long_a_turn_was() -> None:
    pacing = DutyCycle()
    assert pacing.rest_after(0.0, 30.0) == pytest.approx(0.4)
    assert pacing.rest_after(30.4, 60.4) == pytest.approx(0.4)
