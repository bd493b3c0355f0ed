"""When those who wait will probably start: never after the plan's bound, and as people typically leave."""

import random
from dataclasses import replace
from datetime import datetime
from itertools import pairwise

import pytest
from hypothesis import given, settings

from gpudev.domain.ids import ReservationId
from gpudev.planning.queue.forecasting import Experience, Forecast, UsageRatios
from support.planner.situations import NOW, Situation, ask, h100, held, hours, rid, situations
from support.planner.whole_plan import forecast, plan_queue

LEAVES_AT_HALF_TIME = UsageRatios((0.0,) * 10 + (1.0,) + (0.0,) * 10)
STAYS_TO_THE_END = UsageRatios((0.0,) * 20 + (1.0,))


def forecasts_of(
    situation: Situation, habits: UsageRatios | None = None, began: dict[ReservationId, datetime] | None = None
) -> dict[ReservationId, Forecast]:
    return forecast(
        situation.nodes,
        situation.holdings,
        situation.queue,
        situation.now,
        began=began or {},
        latest=bounds(situation),
        came={},
        experience={} if habits is None else {"h100": Experience(usage_ratios=habits)},
        margin=situation.margin,
    )


def bounds(situation: Situation) -> dict[ReservationId, datetime | None]:
    plan = plan_queue(situation.nodes, situation.holdings, situation.queue, situation.now, situation.margin)
    return {wait.reservation_id: wait.estimate.latest for wait in plan.waits}


def typical_hours(forecasts: dict[ReservationId, Forecast], number: int) -> float:
    return forecasts[rid(number)].prediction.typical / 3600


ONE_NODE = Situation((h100("a"),), (held(9, 4, ("a", range(8))),), (ask(1, 8, 6), ask(2, 8, 2), ask(3, 8, 2)))


@pytest.mark.parametrize(
    ("habits", "first", "second", "third"),
    [(STAYS_TO_THE_END, 4, 10, 12), (LEAVES_AT_HALF_TIME, 2.05, 5.2, 6.25)],
)
def test_everybody_is_expected_to_leave_when_people_typically_do(
    habits: UsageRatios, first: float, second: float, third: float
) -> None:
    forecasts = forecasts_of(ONE_NODE, habits)
    assert typical_hours(forecasts, 1) == pytest.approx(first, abs=0.1)
    assert typical_hours(forecasts, 2) == pytest.approx(second, abs=0.2)
    assert typical_hours(forecasts, 3) == pytest.approx(third, abs=0.3)


def test_whoever_has_passed_the_typical_end_is_expected_to_stay_on() -> None:
    """Four hours are left of ten, six are used: nobody leaves at half-time who is still there after it."""
    most_leave_early = UsageRatios((9.0,) * 10 + (1.0,) * 10 + (0.0,))
    fresh = forecasts_of(ONE_NODE, most_leave_early, {rid(9): NOW})
    late = forecasts_of(ONE_NODE, most_leave_early, {rid(9): NOW - hours(6)})
    assert typical_hours(fresh, 1) == pytest.approx(0.27 * 4, abs=0.1)
    assert typical_hours(late, 1) == pytest.approx(2, abs=0.1)


def test_what_is_being_cleared_away_is_gone_after_the_margin() -> None:
    situation = replace(ONE_NODE, holdings=(held(9, None, ("a", range(8))),))
    assert forecasts_of(situation)[rid(1)].prediction.typical == situation.margin.total_seconds()


def test_a_type_of_which_nothing_is_known_is_forecast_from_the_guess() -> None:
    first = forecasts_of(ONE_NODE)[rid(1)]
    assert NOW < first.earliest < first.expected < first.latest_likely <= NOW + hours(4)


def test_whoever_can_be_promised_no_start_is_given_no_forecast() -> None:
    situation = Situation((h100("a", ready=False),), (), (ask(1, 8),))
    assert forecasts_of(situation) == {}


def test_those_behind_who_ask_for_the_same_are_not_told_to_start_before_those_ahead() -> None:
    queue = tuple(ask(number, 4, 3) for number in range(1, 30))
    situation = replace(ONE_NODE, queue=queue)
    forecasts = [forecasts_of(situation)[rid(number)] for number in range(1, 30)]
    for ahead, behind in pairwise(forecasts):
        assert ahead.earliest <= behind.earliest
        assert ahead.expected <= behind.expected
        assert ahead.latest_likely <= behind.latest_likely


@settings(max_examples=150, deadline=None)
@given(situations())
def test_every_forecast_lies_between_now_and_the_bound(situation: Situation) -> None:
    latest = bounds(situation)
    forecasts = forecasts_of(situation)
    assert set(forecasts) == {who for who, bound in latest.items() if bound is not None}
    for who, each in forecasts.items():
        bound = latest[who]
        assert bound is not None
        assert situation.now <= each.earliest <= each.expected <= each.latest_likely <= bound


@settings(max_examples=50, deadline=None)
@given(situations())
def test_the_same_facts_give_the_same_forecasts_in_whatever_order_they_come(situation: Situation) -> None:
    dice = random.Random(1)
    shuffled = replace(
        situation,
        nodes=tuple(dice.sample(situation.nodes, len(situation.nodes))),
        holdings=tuple(dice.sample(situation.holdings, len(situation.holdings))),
        queue=tuple(dice.sample(situation.queue, len(situation.queue))),
    )
    assert forecasts_of(shuffled) == forecasts_of(situation)
