"""Warnings come once each, never in a burst, and nothing outlives its time."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import format_minutes, minutes_until
from gpudev.planning.reservations.expiry import Expire, NotDue, Warn, decide_expiry
from gpudev.planning.reservations.reconcile_reservations import decide_running
from gpudev.settings import TimingSettings
from support.planner.reservation_factory import active, preparing
from support.planner.situations import NOW

TIMING = TimingSettings()


def minutes(count: float) -> timedelta:
    return timedelta(minutes=count)


@pytest.mark.parametrize(("left", "warned", "decision"), [
    (120, None, NotDue(NOW + minutes(90))),
    (30.1, None, NotDue(NOW + minutes(0.1))),
    (30, None, Warn(30, minutes(30))),
    (29, 30, NotDue(NOW + minutes(14))),
    (15, 30, Warn(15, minutes(15))),
    (10, 15, NotDue(NOW + minutes(5))),
    (5, 15, Warn(5, minutes(5))),
    (3, 5, NotDue(NOW + minutes(3))),
    (0, 5, Expire()),
    (-10, None, Expire()),
    (12, None, Warn(15, minutes(12))),
    (1, None, Warn(5, minutes(1))),
    (4, 30, Warn(5, minutes(4))),
    (4, 5, NotDue(NOW + minutes(4))),
])  # fmt: skip
def test_the_smallest_warning_that_is_due_and_not_given(
    left: float, warned: int | None, decision: Expire | Warn | NotDue
) -> None:
    assert decide_expiry(active(left, warned_minutes=warned), NOW, TIMING) == decision


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.ACTIVE])
def test_only_the_active_expire(status: Status) -> None:
    assert decide_expiry(active(-60, status=status), NOW, TIMING) == NotDue(None)


def test_while_it_is_prepared_the_clock_has_not_begun() -> None:
    assert decide_expiry(preparing(), NOW + timedelta(days=1), TIMING) == NotDue(None)


def test_extending_arms_the_warnings_again() -> None:
    extended = active(30, warned_minutes=None)
    assert decide_expiry(extended, NOW, TIMING) == Warn(30, minutes(30))


@given(st.sets(st.integers(1, 40), min_size=1, max_size=4), st.lists(st.floats(0.01, 45), min_size=2, max_size=20))
def test_no_two_warnings_have_the_same_words(thresholds: set[int], lefts: list[float]) -> None:
    timing = replace(TIMING, warning_minutes=tuple(sorted(thresholds, reverse=True)))
    warned, texts = None, []
    for left in sorted(lefts, reverse=True):
        decision = decide_expiry(active(left, warned_minutes=warned), NOW, timing)
        if isinstance(decision, Warn):
            warned = decision.minutes
            texts.append(format_minutes(minutes_until(NOW + decision.left, NOW)))
    assert len(set(texts)) == len(texts)


def test_a_short_reservation_is_warned_with_different_words_at_two_minutes_and_at_one() -> None:
    timing = replace(TIMING, warning_minutes=(2, 1))
    texts = []
    for left, warned in ((1.2, None), (1, 2)):
        decision = decide_running([active(left, warned_minutes=warned)], None, NOW, timing)
        texts += [message for _, message in decision.messages]
    assert ["in 2 minutes" in texts[0], "in 1 minute " in texts[1]] == [True, True]


@given(st.floats(0.5, 300), st.lists(st.floats(0.01, 60), min_size=1, max_size=40))
def test_whenever_one_looks_each_warning_comes_at_most_once_and_smaller_than_the_last(
    long: float, steps: list[float]
) -> None:
    reservation = active(long)
    end = NOW + minutes(long)
    now, given_warnings = NOW, []
    for step in steps:
        decision = decide_expiry(reservation, now, TIMING)
        if isinstance(decision, Expire):
            assert now >= end
            break
        assert now < end
        if isinstance(decision, Warn):
            given_warnings.append(decision.minutes)
            assert decision.left <= minutes(decision.minutes)
            reservation = replace(reservation, warned_minutes=decision.minutes)
            assert isinstance(decide_expiry(reservation, now, TIMING), NotDue), "no burst"
        now += minutes(step)
    assert given_warnings == sorted(set(given_warnings), reverse=True)


@given(st.floats(0.5, 300))
def test_whoever_looks_when_told_misses_nothing(long: float) -> None:
    reservation = active(long)
    now, seen = NOW, []
    while not isinstance(decision := decide_expiry(reservation, now, TIMING), Expire):
        if isinstance(decision, Warn):
            seen.append(decision.minutes)
            reservation = replace(reservation, warned_minutes=decision.minutes)
        else:
            assert isinstance(decision.next_at, datetime)
            assert decision.next_at > now
            now = decision.next_at
    assert now == reservation.expires_at
    due_at_once = [m for m in TIMING.warning_minutes if minutes(m) >= minutes(long)]
    assert seen == [
        *([min(due_at_once)] if due_at_once else []),
        *(m for m in (30, 15, 5) if minutes(m) < minutes(long)),
    ]
