from datetime import timedelta
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from gpudev.domain.backoff import backoff, growing_pauses


def test_each_pause_is_twice_the_one_before_until_the_longest() -> None:
    assert list(islice(growing_pauses(1.0, 5.0), 5)) == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert backoff(3, timedelta(seconds=2)) == timedelta(seconds=8)


def test_a_slower_growth_can_be_asked_for() -> None:
    assert list(islice(growing_pauses(4.0, 20.0, factor=1.5), 5)) == [4.0, 6.0, 9.0, 13.5, 20.0]


def test_jitter_shortens_the_longest_pause_too() -> None:
    assert backoff(10, 1.0, 8.0, jitter=0.5) == 4.0


@given(st.integers(min_value=1))
def test_no_number_of_failures_is_too_large(failures: int) -> None:
    longest = timedelta(minutes=5)
    assert timedelta(0) < backoff(failures, timedelta(seconds=2), longest) <= longest
