"""Extending is free while nobody waits; otherwise it goes as far as it moves nobody's planned start."""

import math
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpudev.domain.cluster import Allocation, Node
from gpudev.domain.queue import Estimate
from gpudev.planning.queue.extension import ExtensionDenied, ExtensionGranted, decide_extension
from gpudev.planning.queue.plan import Request
from gpudev.settings import LimitSettings
from support.planner.plan_properties import begins, real_planner
from support.planner.situations import NOW, Situation, ask, h100, held, hours, situations

LIMITS = LimitSettings()
ALL = range(8)
AN_HOUR_AGO = NOW - hours(1)


def ask_for(
    longer: float,
    holding: Allocation,
    nodes: list[Node],
    queue: list[Request],
    others: list[Allocation] | None = None,
    *,
    launched_at: datetime = AN_HOUR_AGO,
) -> ExtensionGranted | ExtensionDenied:
    return decide_extension(
        holding.reservation_id,
        holding,
        longer,
        nodes=nodes,
        allocations=[holding, *(others or [])],
        queue=queue,
        now=NOW,
        launched_at=launched_at,
        limits=LIMITS,
        teardown_margin=timedelta(0),
    )


MINE = held(90, 2, ("a", ALL))


def test_it_is_granted_while_nobody_waits() -> None:
    assert ask_for(4, MINE, [h100("a")], []) == ExtensionGranted(NOW + hours(6))


def test_those_who_wait_for_another_type_do_not_matter() -> None:
    assert ask_for(4, MINE, [h100("a")], [ask(1, 4, gpu_type="t4")]) == ExtensionGranted(NOW + hours(6))


def test_those_who_can_never_run_do_not_matter() -> None:
    assert ask_for(4, MINE, [h100("a")], [ask(1, 16)]) == ExtensionGranted(NOW + hours(6))


def test_it_is_refused_when_somebody_starts_where_it_ends() -> None:
    answer = ask_for(1, MINE, [h100("a")], [ask(0x3F2A1B7C, 8)])
    assert answer == ExtensionDenied(
        "reservation 3f2a1b7c waits and is guaranteed to start by 2026-03-02 11:00:00 UTC, which this would delay; "
        "it cannot be extended"
    )


def test_it_goes_as_far_as_the_next_planned_start() -> None:
    """The other half of the node is free at hour 5 only, and the one who waits needs the whole."""
    mine, other = held(90, 2, ("a", range(4))), held(91, 5, ("a", range(4, 8)))
    answer = ask_for(4, mine, [h100("a")], [ask(1, 8)], [other])
    assert isinstance(answer, ExtensionDenied)
    assert answer.at_most == NOW + hours(5)
    assert answer.reason.endswith("it can be extended until 2026-03-02 14:00:00 UTC")
    assert ask_for(3, mine, [h100("a")], [ask(1, 8)], [other]) == ExtensionGranted(NOW + hours(5))


def test_it_is_granted_when_the_one_who_waits_finds_as_early_a_place_elsewhere() -> None:
    elsewhere = held(91, 2, ("b", ALL))
    assert ask_for(4, MINE, [h100("a"), h100("b")], [ask(1, 8)], [elsewhere]) == ExtensionGranted(NOW + hours(6))


def test_not_only_the_first_in_the_queue_counts() -> None:
    elsewhere = held(91, 2, ("b", ALL))
    answer = ask_for(4, MINE, [h100("a"), h100("b")], [ask(1, 8, 9), ask(2, 8, 1)], [elsewhere])
    assert isinstance(answer, ExtensionDenied)
    assert answer.reason.startswith("reservation 00000002 waits")


def test_all_nodes_of_a_gang_count() -> None:
    gang = held(90, 2, ("a", ALL), ("b", ALL))
    answer = ask_for(2, gang, [h100("a"), h100("b")], [ask(1, 8, 1), ask(2, 8, 1)])
    assert isinstance(answer, ExtensionDenied)
    assert answer.at_most is None


@pytest.mark.parametrize("longer", [math.nan, math.inf, -math.inf, 0, -1])
def test_a_number_that_means_nothing_is_refused_as_invalid(longer: float) -> None:
    answer = ask_for(longer, MINE, [h100("a")], [])
    assert answer == ExtensionDenied("an extension must be more than 0 hours", invalid=True)


@pytest.mark.parametrize("until", [None, 0, -0.5])
def test_what_is_over_cannot_be_extended(until: float | None) -> None:
    over = held(90, until, ("a", ALL))
    assert ask_for(1, over, [h100("a")], []) == ExtensionDenied("its time is over; reserve again")


class TestTheLimit:
    def test_it_counts_from_the_launch(self) -> None:
        assert ask_for(45, MINE, [h100("a")], []) == ExtensionGranted(NOW + hours(47))

    @pytest.mark.parametrize("longer", [45.5, 1e9, 1e300])
    def test_beyond_it_the_answer_says_how_far_it_goes(self, longer: float) -> None:
        answer = ask_for(longer, MINE, [h100("a")], [])
        assert answer == ExtensionDenied(
            "a reservation lasts at most 48 hours with its extensions; "
            "it can be extended until 2026-03-04 08:00:00 UTC",
            NOW + hours(47),
        )

    def test_at_it_nothing_is_left(self) -> None:
        answer = ask_for(1, MINE, [h100("a")], [], launched_at=NOW - hours(46))
        assert answer == ExtensionDenied(
            "a reservation lasts at most 48 hours with its extensions; it cannot be extended"
        )

    def test_beyond_it_those_who_wait_count_all_the_same(self) -> None:
        other = held(91, 5, ("a", range(4, 8)))
        answer = ask_for(1000, held(90, 2, ("a", range(4))), [h100("a")], [ask(1, 8)], [other])
        assert isinstance(answer, ExtensionDenied)
        assert answer.at_most == NOW + hours(5)


class TestWithPromises:
    """The one who waits was promised hour 3 when another had 2 hours left; that one is gone, so hour 2 is planned."""

    mine = held(90, 2, ("a", range(4)))
    waiting = ask(1, 8)
    told = Estimate(1, NOW + hours(3), None, "", ("a",))

    def answer(self, longer: float, clearing: timedelta = timedelta(0)) -> ExtensionGranted | ExtensionDenied:
        return decide_extension(
            self.mine.reservation_id,
            self.mine,
            longer,
            nodes=[h100("a")],
            allocations=[self.mine],
            queue=[self.waiting],
            now=NOW,
            launched_at=AN_HOUR_AGO,
            limits=LIMITS,
            teardown_margin=clearing,
            promises={self.waiting.reservation_id: self.told},
        )

    def test_it_goes_as_far_as_the_promise(self) -> None:
        assert self.answer(1) == ExtensionGranted(NOW + hours(3))

    def test_it_does_not_go_beyond_it(self) -> None:
        answer = self.answer(1.5)
        assert isinstance(answer, ExtensionDenied)
        assert answer.at_most == NOW + hours(3)

    def test_the_time_to_clear_away_stays_free_before_it(self) -> None:
        answer = self.answer(2, clearing=timedelta(minutes=10))
        assert isinstance(answer, ExtensionDenied)
        assert answer.at_most == NOW + hours(3) - timedelta(minutes=10)


@settings(max_examples=100, deadline=None)
@given(situations(), st.integers(0, 6), st.sampled_from([0.5, 1, 2, 5]))
def test_what_is_granted_delays_nobody_and_what_is_offered_is_granted(
    situation: Situation, which: int, longer: float
) -> None:
    situation = replace(situation, margin=timedelta(0))
    running = [h for h in situation.holdings if h.until is not None and h.until > NOW]
    assume(running)
    mine = running[which % len(running)]
    before = begins(situation, real_planner(situation))

    def answer(more: timedelta) -> ExtensionGranted | ExtensionDenied:
        return decide_extension(
            mine.reservation_id,
            mine,
            more / hours(1),
            nodes=situation.nodes,
            allocations=situation.holdings,
            queue=situation.queue,
            now=NOW,
            launched_at=NOW,
            limits=LIMITS,
            teardown_margin=timedelta(0),
        )

    def is_delayed_by(until: datetime) -> bool:
        longer_held = tuple(replace(h, until=until) if h is mine else h for h in situation.holdings)
        later = replace(situation, holdings=longer_held)
        after = begins(later, real_planner(later))
        return any(at is not None and (after[who] is None or after[who] > at) for who, at in before.items())  # type: ignore[operator]

    assert mine.until is not None
    decided = answer(hours(longer))
    if isinstance(decided, ExtensionGranted):
        assert decided.until == mine.until + hours(longer)
        assert not is_delayed_by(decided.until)
    else:
        assert is_delayed_by(mine.until + hours(longer))
        if decided.at_most is not None:
            assert mine.until < decided.at_most < mine.until + hours(longer)
            assert answer(decided.at_most - mine.until) == ExtensionGranted(decided.at_most)
