"""How long people typically stay: from a guess, from what was seen, and given how long they have stayed already."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudev.planning.queue.forecasting import UsageRatios

HOUR = timedelta(hours=1)


def known(*used: float, times: int = 100, habits: UsageRatios | None = None) -> UsageRatios:
    """Habits of people who used these parts of their time, each so often."""
    habits = habits or UsageRatios()
    for _ in range(times):
        for part in used:
            habits = habits.learn(10 * HOUR * part, 10 * HOUR)
    return habits


def test_while_nobody_has_left_people_are_guessed_to_stay_for_less_than_half_their_time() -> None:
    assert 1 < UsageRatios().typical().remaining(10) < 5


@pytest.mark.parametrize(
    ("used", "elapsed", "rest"),
    [
        ((0.82,), 0, 8.2),
        ((0.82,), 6, 2.2),
        ((0.12, 0.82), 3, 5.2),
        ((1,), 0, 10),
        ((1,), 9, 1),
        ((0.07, 0.07, 1), 2, 8),
        ((1.4,), 0, 10),
    ],
)
def test_half_of_those_who_have_stayed_so_long_stay_as_long_as_is_said(
    used: tuple[float, ...], elapsed: float, rest: float
) -> None:
    assert known(*used).typical().remaining(10, elapsed) == pytest.approx(rest, abs=0.5)


def test_a_few_that_were_seen_move_the_guess_and_many_replace_it() -> None:
    guess = UsageRatios().typical().remaining(10)
    few, many = (known(0.92, times=times).typical().remaining(10) for times in (5, 200))
    assert guess < few < many
    assert many == pytest.approx(9.2, abs=0.4)


def test_when_people_change_what_is_said_of_them_changes() -> None:
    before = known(0.12, times=3000)
    after = known(0.92, times=1200, habits=before)
    assert after.typical().remaining(10) == pytest.approx(9.2, abs=0.4)


def test_what_is_kept_of_thousands_stays_small() -> None:
    habits = known(0.3, 0.6, times=2000)
    assert len(habits.counts) == len(UsageRatios().counts)
    assert sum(habits.counts) <= 1000


def test_whoever_asked_for_nothing_or_has_had_all_of_it_stays_no_longer() -> None:
    assert UsageRatios().learn(HOUR, timedelta(0)) == UsageRatios()
    assert UsageRatios().typical().remaining(0) == 0
    assert UsageRatios().typical().remaining(10, 10) == UsageRatios().typical().remaining(10, 11) == 0


@given(
    st.lists(st.floats(0, 1.2), max_size=60),
    st.floats(0.01, 48),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_nobody_is_said_to_stay_beyond_their_time_or_to_leave_before_now(
    used: list[float], asked: float, one: float, other: float
) -> None:
    typical = known(*used, times=1).typical()
    ends = []
    for elapsed in sorted((one * asked, other * asked)):
        rest = typical.remaining(asked, elapsed)
        assert 0 <= rest <= asked - elapsed + 1e-9
        ends.append(elapsed + rest)
    assert ends[0] <= ends[1] + 1e-9, "whoever has stayed longer is not expected to leave earlier"
