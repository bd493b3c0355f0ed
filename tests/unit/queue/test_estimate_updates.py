"""What of a plan is worth writing down, and why somebody starts later."""

from dataclasses import replace
from datetime import timedelta

import pytest

from gpudev.domain.queue import DelayCause, Estimate, TimeInterval
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.queue.delay_reasons import explain_delay, is_delayed
from gpudev.planning.queue.estimate_updates import is_worth_writing
from support.factories import make_reservation
from support.planner.situations import NOW, ask, h100, held, hours, rid

MINUTE = timedelta(minutes=1)


def told(position: int, wait: timedelta, expected: timedelta | None = None) -> Estimate:
    at = NOW + (expected or wait / 2)
    return Estimate(position, NOW + wait, TimeInterval(at, at, at), "because")


def row(estimate: Estimate) -> Reservation:
    return make_reservation(
        reservation_id=rid(1),
        gpu_count=8,
        duration=hours(1),
        estimate=estimate,
    )


@pytest.mark.parametrize(
    ("before", "after", "news"),
    [
        (told(5, hours(5)), told(5, hours(5)), False),
        (told(5, hours(5)), told(4, hours(5)), True),
        (told(5, hours(5)), replace(told(5, hours(5)), reason="another"), True),
        (told(5, hours(5)), told(5, hours(5) - MINUTE, hours(2.5)), True),
        (told(5, hours(5)), told(5, hours(5), hours(2.5) - MINUTE), False),
        (told(5, hours(5)), told(5, hours(5), hours(2)), True),
        (told(500, hours(50)), told(499, hours(50)), False),
        (told(500, hours(50)), told(449, hours(50)), True),
        (told(500, hours(50)), replace(told(500, hours(50)), reason="another"), False),
        (told(500, hours(50)), told(500, hours(49), hours(25)), False),
        (told(500, hours(50)), told(500, hours(44), hours(25)), True),
        (told(5, hours(5)), Estimate(5, None, None, "because"), True),
    ],
)
def test_a_change_is_news_when_it_is_large_for_its_owner(before: Estimate, after: Estimate, news: bool) -> None:
    assert is_worth_writing(row(before), after, NOW) is news


def test_one_that_nobody_has_looked_at_yet_is_news() -> None:
    assert is_worth_writing(replace(row(told(1, hours(1))), estimate=None), told(1, hours(1)), NOW)


def wait(at: timedelta | None, *nodes: str) -> Estimate:
    return Estimate(1, None if at is None else NOW + at, None, "", nodes or ("a",))


@pytest.mark.parametrize(
    ("before", "after", "delayed"),
    [
        (hours(1), hours(1), False),
        (hours(1), hours(0.5), False),
        (hours(1), hours(1) + 2 * MINUTE, False),
        (hours(1), hours(1) + 7 * MINUTE, True),
        (MINUTE, 3 * MINUTE, True),
        (hours(1), None, True),
        (None, hours(1), False),
        (None, None, False),
    ],
)
def test_a_later_start_needs_words_when_it_is_later_by_something(
    before: timedelta | None, after: timedelta | None, delayed: bool
) -> None:
    assert is_delayed(wait(before), wait(after), NOW, NOW) is delayed


class TestWhy:
    own = ask(1, 8)
    nodes = (h100("a"), h100("b"))

    def why(self, **facts: object) -> tuple[DelayCause, str]:
        usual: dict[str, object] = {
            "nodes": self.nodes,
            "allocations": [held(90, 1, ("a", range(8)))],
            "preparing": [],
            "queue": [self.own],
            "now": NOW,
            "preparing_margin": MINUTE,
        }
        return explain_delay(wait(hours(1), "a"), self.own, **(usual | facts))  # type: ignore[arg-type]

    def test_a_node_that_is_gone_or_not_ready_was_lost(self) -> None:
        for nodes in ([h100("b")], [h100("a", ready=False)]):
            assert self.why(nodes=nodes) == (DelayCause.NODE_LOST, "node a was lost")

    def test_a_closed_node_is_an_operators_act(self) -> None:
        because, words = self.why(nodes=[h100("a", schedulable=False)])
        assert because is DelayCause.OPERATOR
        assert "closed" in words

    def test_so_is_a_higher_priority(self) -> None:
        assert self.why(queue=[self.own, ask(2, 8, priority=1)])[0] is DelayCause.OPERATOR

    def test_something_over_that_is_still_there_is_named(self) -> None:
        because, words = self.why(allocations=[held(0x3F2A1B7C, -1, ("a", range(8)))])
        assert because is DelayCause.SLOW_RELEASE
        assert "3f2a1b7c" in words
        assert self.why(allocations=[held(0x3F2A1B7C, -1, ("b", range(8)))])[0] is DelayCause.UNEXPLAINED

    def test_a_slow_start_is_named(self) -> None:
        slow = replace(
            row(told(1, hours(1))),
            status=Status.PREPARING,
            preparing_at=NOW - 2 * MINUTE,
            shares=held(90, 1, ("a", range(8))).shares,
        )
        assert self.why(preparing=[slow])[0] is DelayCause.SLOW_START
        assert self.why(preparing=[replace(slow, preparing_at=NOW)])[0] is DelayCause.UNEXPLAINED

    def test_foreign_work_is_named(self) -> None:
        assert self.why(nodes=[h100("a", foreign_units=1)])[0] is DelayCause.FOREIGN_WORK
