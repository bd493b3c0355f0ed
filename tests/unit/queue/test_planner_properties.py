"""The planner's properties, over invented situations: each holds for the real planner, and each catches a planner
that is broken in just that way. A property that catches nobody would prove nothing."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from support.planner import broken_planners as broken
from support.planner import plan_properties as claims
from support.planner.plan_properties import Claim, real_planner
from support.planner.reference_planner import Planner
from support.planner.situations import Situation, hours, situations
from support.planner.whole_plan import Plan, plan_queue

CLAIMS: list[tuple[Claim, list[Planner]]] = [
    (claims.no_node_ever_gives_more_than_it_has, [broken.forgets_what_is_held, broken.counts_on_totals]),
    (claims.nobody_shares_a_gpu, [broken.numbers_gpus_from_zero, broken.forgets_what_is_held]),
    (claims.gangs_are_whole, [broken.puts_a_gang_on_one_node, broken.starts_half_a_gang]),
    (claims.nobody_ahead_is_delayed, [broken.starts_whoever_fits_now, broken.protects_only_the_head]),
    (claims.nothing_idles_that_somebody_could_use, [broken.never_backfills, broken.never_moves_a_disk]),
    (claims.nobody_is_placed_outside_the_zones_allowed, [broken.forgets_where_disks_are]),
    (claims.disks_are_moved_only_where_that_is_faster_than_waiting, [broken.moves_disks_whenever_it_can]),
    (claims.the_same_facts_give_the_same_plan, [broken.breaks_ties_by_order_of_mention]),
    (claims.more_free_gpus_never_delay_the_head, [broken.lets_late_ones_in_when_there_is_room]),
    (claims.positions_are_a_permutation, [broken.counts_positions_over_all_types]),
    (claims.it_says_what_the_reference_says, [broken.breaks_ties_backwards, broken.starts_whoever_fits_now]),
]
CAUGHT = [(claim, planner) for claim, planners in CLAIMS for planner in planners]

FIND_ONE = settings(
    max_examples=2000,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("claim", [claim for claim, _ in CLAIMS], ids=lambda claim: claim.__name__)
def test_it_holds_for_the_planner(claim: Claim) -> None:
    @settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(situations())
    def holds(situation: Situation) -> None:
        claim(real_planner, situation)

    holds()


def planner_that_keeps_promises(situation: Situation) -> Plan:
    """Promised was what a plan said when those of even number were not there yet and everybody stayed longer."""
    longer = tuple(h if h.until is None else replace(h, until=h.until + hours(1)) for h in situation.holdings)
    before = replace(situation.with_queue([r for r in situation.queue if r.seq % 2]), holdings=longer)
    told = real_planner(before).estimates()
    s = situation
    return plan_queue(s.nodes, s.holdings, s.queue, s.now, s.margin, promises=told)


@pytest.mark.parametrize(
    "claim",
    [
        claims.no_node_ever_gives_more_than_it_has,
        claims.nobody_shares_a_gpu,
        claims.gangs_are_whole,
        claims.nobody_is_placed_outside_the_zones_allowed,
        claims.the_same_facts_give_the_same_plan,
        claims.positions_are_a_permutation,
    ],
    ids=lambda claim: claim.__name__,
)
def test_it_holds_for_plans_that_keep_promises(claim: Claim) -> None:
    """Whatever was promised. (What broken planners these claims catch is shown below.)"""

    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(situations(at_most=12))
    def holds(situation: Situation) -> None:
        claim(planner_that_keeps_promises, situation)

    holds()


@pytest.mark.parametrize(
    ("claim", "planner"), CAUGHT, ids=[f"{claim.__name__}-{planner.__name__}" for claim, planner in CAUGHT]
)
def test_it_catches_a_planner_that_is_broken(claim: Claim, planner: Planner) -> None:
    @settings(FIND_ONE)
    @given(situations())
    def holds(situation: Situation) -> None:
        claim(planner, situation)

    with pytest.raises(AssertionError):
        holds()
