"""The queue's rules, one by one, as tables of small situations."""

from datetime import timedelta
from itertools import permutations

import pytest

from gpudev.domain.cluster import Allocation, Node, NodeShare
from gpudev.planning.queue.plan import Request
from support.planner.situations import MARGIN, NOW, ask, h100, held, hours, rid
from support.planner.whole_plan import Plan, plan_queue


def plan(nodes: list[Node], holdings: list[Allocation], queue: list[Request]) -> Plan:
    return plan_queue(nodes, holdings, queue, NOW, MARGIN)


def started(plan: Plan) -> dict[int, list[str]]:
    """Who starts where, by the numbers requests were made with."""
    return {start.reservation_id.int >> 96: [share.node for share in start.shares] for start in plan.starts}


def begins(plan: Plan) -> dict[int, float | None]:
    """Hours until those who wait start."""
    return {
        wait.reservation_id.int >> 96: None if wait.estimate.latest is None else (wait.estimate.latest - NOW) / hours(1)
        for wait in plan.waits
    }


class TestStartingNow:
    def test_a_request_starts_on_a_free_node_with_the_lowest_gpus(self) -> None:
        made = plan([h100("a")], [], [ask(1, 2)])
        assert made.waits == ()
        assert made.starts[0].shares == (NodeShare(0, "a", 2, (0, 1)),)

    def test_two_half_free_nodes_do_not_satisfy_a_full_node_request(self) -> None:
        halves = [held(91, 2, ("a", range(4))), held(92, 3, ("b", range(4)))]
        made = plan([h100("a"), h100("b")], halves, [ask(1, 8)])
        assert started(made) == {}
        assert begins(made) == {1: 2}

    def test_the_fullest_node_that_fits_is_taken(self) -> None:
        nodes = [h100("a"), h100("b"), h100("c")]
        holdings = [held(91, 5, ("b", range(4))), held(92, 5, ("c", range(7)))]
        assert started(plan(nodes, holdings, [ask(1, 2)])) == {1: ["b"]}

    def test_ties_are_broken_by_name(self) -> None:
        assert started(plan([h100("b"), h100("c"), h100("a")], [], [ask(1, 2)])) == {1: ["a"]}

    def test_those_who_start_together_share_nothing(self) -> None:
        made = plan([h100("a")], [], [ask(1, 2), ask(2, 4), ask(3, 2)])
        assert [start.shares[0].gpu_indices for start in made.starts] == [(0, 1), (2, 3, 4, 5), (6, 7)]

    def test_gpus_of_others_and_of_strangers_are_left_alone(self) -> None:
        node = h100("a", foreign_units=2, foreign_indices=frozenset({0, 3}))
        made = plan([node], [held(91, 5, ("a", [1, 5]))], [ask(1, 4)])
        assert made.starts[0].shares[0].gpu_indices == (2, 4, 6, 7)

    def test_another_types_nodes_are_no_help(self) -> None:
        made = plan([Node("a", "t4", 8)], [], [ask(1, 1)])
        assert begins(made) == {1: None}

    @pytest.mark.parametrize("taken", [0, 1, 2])
    def test_a_cpu_node_has_three_slots_without_gpu_numbers(self, taken: int) -> None:
        node = Node("c", "cpu-x86", 3)
        holdings = [Allocation(rid(90 + n), "cpu-x86", (NodeShare(0, "c", 1),), NOW + hours(2)) for n in range(taken)]
        queue = [ask(n, 1, gpu_type="cpu-x86") for n in range(1, 5)]
        made = plan([node], holdings, queue)
        assert len(made.starts) == 3 - taken
        assert all(start.shares == (NodeShare(0, "c", 1, ()),) for start in made.starts)


class TestWaiting:
    def test_it_starts_exactly_when_the_holder_ends(self) -> None:
        made = plan([h100("a")], [held(0x3F2A1B7C, 4, ("a", range(8)))], [ask(1, 8)])
        (wait,) = made.waits
        assert wait.estimate.latest == NOW + hours(4)
        assert wait.estimate.nodes == ("a",)
        assert wait.estimate.position == 1
        assert wait.estimate.reason == "0 of 8 GPUs free on any h100 node; first fit when reservation 3f2a1b7c ends"

    def test_releases_of_other_nodes_do_not_add_up(self) -> None:
        nodes = [h100("a"), h100("b")]
        holdings = [held(91, 1, ("a", range(4))), held(92, 9, ("a", range(4, 8))), held(93, 2, ("b", range(8)))]
        assert begins(plan(nodes, holdings, [ask(1, 8)])) == {1: 2}

    def test_releases_of_another_type_do_not_help(self) -> None:
        nodes = [h100("a"), Node("b", "t4", 4)]
        holdings = [held(91, 6, ("a", range(8))), held(92, 1, ("b", range(4)), gpu_type="t4")]
        assert begins(plan(nodes, holdings, [ask(1, 4)])) == {1: 6}

    @pytest.mark.parametrize("until", [None, 0, -1], ids=["torn down", "ends now", "overdue"])
    def test_what_should_have_ended_is_never_free_already(self, until: float | None) -> None:
        made = plan([h100("a")], [held(91, until, ("a", range(8)))], [ask(1, 8)])
        assert started(made) == {}
        assert made.waits[0].estimate.latest == NOW + MARGIN
        assert "is over, is torn down" in made.waits[0].estimate.reason

    def test_without_a_margin_the_overdue_are_not_free_either(self) -> None:
        made = plan_queue([h100("a")], [held(91, -1, ("a", range(8)))], [ask(1, 8)], NOW, timedelta(0))
        assert made.starts == ()

    def test_foreign_work_never_ends(self) -> None:
        made = plan([h100("a", foreign_units=2)], [], [ask(1, 8), ask(2, 4)])
        assert begins(made) == {1: None}
        assert made.waits[0].estimate.reason == "unmanaged use leaves at most 6 of 8 GPUs on any h100 node"
        assert started(made) == {2: ["a"]}

    @pytest.mark.parametrize(
        ("nodes", "reason"),
        [
            ([], "there is no h100 node"),
            ([h100("a", ready=False)], "no h100 node is ready"),
            ([h100("a", schedulable=False)], "no h100 node is open for new work"),
            ([h100("a", units=4)], "needs 8 GPUs on one node; the largest h100 node ready has 4"),
        ],
    )
    def test_without_a_node_nothing_is_promised(self, nodes: list[Node], reason: str) -> None:
        (wait,) = plan(nodes, [held(91, 1, ("a", [0]))], [ask(1, 8)]).waits
        assert (wait.estimate.latest, wait.estimate.nodes, wait.estimate.reason) == (None, (), reason)

    def test_a_node_that_is_down_promises_nothing_even_when_its_holder_ends_first(self) -> None:
        nodes = [h100("a", ready=False), h100("b")]
        holdings = [held(91, 1, ("a", range(8))), held(92, 7, ("b", range(8)))]
        assert begins(plan(nodes, holdings, [ask(1, 8)])) == {1: 7}

    def test_a_holder_on_a_vanished_node_promises_nothing(self) -> None:
        holdings = [held(91, 1, ("gone", range(8))), held(92, 7, ("b", range(8)))]
        assert begins(plan([h100("b")], holdings, [ask(1, 8)])) == {1: 7}

    def test_a_node_that_holds_more_than_it_has_offers_nothing_until_enough_has_ended(self) -> None:
        holdings = [held(91, 1, ("a", range(4))), held(92, 2, ("a", range(4, 8)))]
        assert begins(plan([h100("a", units=4)], holdings, [ask(1, 1), ask(2, 4)])) == {1: 2, 2: 3}


class TestOrder:
    def test_first_come_first_served(self) -> None:
        made = plan([h100("a")], [held(91, 4, ("a", range(8)))], [ask(2, 8, 3), ask(1, 8, 2), ask(3, 8)])
        assert begins(made) == {1: 4, 2: 6, 3: 9}
        assert [wait.estimate.position for wait in made.waits] == [1, 2, 3]
        assert made.waits[2].estimate.reason == (
            "0 of 8 GPUs free on any h100 node; 2 requests ahead; "
            "first fit when reservation 00000002, which is ahead, ends"
        )

    def test_a_higher_priority_goes_first(self) -> None:
        made = plan([h100("a")], [held(91, 4, ("a", range(8)))], [ask(1, 8, 2), ask(2, 8, 2, priority=1)])
        assert begins(made) == {2: 4, 1: 6}

    def test_positions_count_within_the_type(self) -> None:
        nodes = [h100("a"), Node("b", "t4", 4)]
        holdings = [held(91, 4, ("a", range(8))), held(92, 4, ("b", range(4)), gpu_type="t4")]
        queue = [ask(1, 8), ask(2, 4, gpu_type="t4"), ask(3, 1), ask(4, 1, gpu_type="t4")]
        positions = {
            wait.reservation_id.int >> 96: wait.estimate.position for wait in plan(nodes, holdings, queue).waits
        }
        assert positions == {1: 1, 2: 1, 3: 2, 4: 2}

    def test_those_who_start_leave_no_gap_in_the_positions(self) -> None:
        made = plan([h100("a")], [held(91, 4, ("a", range(4)))], [ask(1, 8), ask(2, 2, 1), ask(3, 8)])
        assert started(made) == {2: ["a"]}
        assert [wait.estimate.position for wait in made.waits] == [1, 2]

    def test_one_that_can_never_run_holds_nobody_up(self) -> None:
        made = plan([h100("a", units=4)], [], [ask(1, 8), ask(2, 4)])
        assert begins(made) == {1: None}
        assert started(made) == {2: ["a"]}

    def test_the_same_facts_give_the_same_plan_in_any_order(self) -> None:
        nodes = [h100("a"), h100("b"), h100("c", units=4)]
        holdings = [held(91, 2, ("a", range(6))), held(92, 2, ("b", range(6))), held(93, None, ("c", [0]))]
        queue = [ask(1, 8, 2), ask(2, 4), ask(3, 8, nodes=2), ask(4, 1, 5)]
        plans = {
            repr(plan(list(n), list(h), list(q)))
            for n in permutations(nodes)
            for h in permutations(holdings)
            for q in permutations(queue)
        }
        assert len(plans) == 1


class TestBackfill:
    def test_a_short_one_slips_in_before_a_large_one(self) -> None:
        made = plan([h100("a")], [held(91, 4, ("a", range(6)))], [ask(1, 8, 2), ask(2, 2, 4)])
        assert started(made) == {2: ["a"]}
        assert begins(made) == {1: 4}

    def test_one_that_would_outlast_the_gap_waits(self) -> None:
        made = plan([h100("a")], [held(91, 4, ("a", range(6)))], [ask(1, 8, 2), ask(2, 2, 4.01)])
        assert started(made) == {}
        assert begins(made) == {1: 4, 2: 6}
        assert made.waits[1].estimate.reason.startswith(
            "2 GPUs free on one h100 node are promised to those ahead; 1 request ahead"
        )

    def test_not_only_the_first_is_protected(self) -> None:
        """Textbook EASY would start 3 on b at once and push 2 from hour 2 to hour 5."""
        nodes = [h100("a"), h100("b")]
        holdings = [held(91, 1, ("a", range(8))), held(92, 2, ("b", range(6)))]
        made = plan(nodes, holdings, [ask(1, 8, 9), ask(2, 8, 1), ask(3, 2, 5)])
        assert started(made) == {}
        assert begins(made) == {1: 1, 2: 2, 3: 3}

    def test_a_place_for_later_is_on_the_node_that_is_fullest_then(self) -> None:
        nodes = [h100("a"), h100("b")]
        holdings = [held(91, 2, ("a", range(8))), held(92, 2, ("b", range(4))), held(93, 9, ("b", range(4, 8)))]
        made = plan(nodes, holdings, [ask(1, 4, 1)])
        assert made.waits[0].estimate.nodes == ("b",)


class TestGangs:
    def test_a_gang_takes_whole_distinct_nodes(self) -> None:
        made = plan([h100("a"), h100("b"), h100("c")], [held(91, 5, ("b", [0]))], [ask(1, 8, nodes=2)])
        assert made.starts[0].shares == (NodeShare(0, "a", 8, tuple(range(8))), NodeShare(1, "c", 8, tuple(range(8))))

    def test_a_gang_starts_whole_or_not_at_all(self) -> None:
        made = plan([h100("a"), h100("b")], [held(91, 3, ("b", [7]))], [ask(1, 8, nodes=2)])
        assert started(made) == {}
        (wait,) = made.waits
        assert wait.estimate.latest == NOW + hours(3)
        assert wait.estimate.nodes == ("a", "b")
        assert (
            wait.estimate.reason
            == "waits for 2 whole free nodes; 1 of 2 free now; first fit when reservation 0000005b ends"
        )

    def test_a_gang_needs_all_its_nodes_at_one_time(self) -> None:
        """b is free until 1 and from 4 on, because somebody ahead has it in between; a and c come free at 2 and 9."""
        nodes = [h100("a"), h100("b"), h100("c")]
        holdings = [held(91, 2, ("a", range(8))), held(92, 9, ("c", range(8)))]
        made = plan(nodes, holdings, [ask(1, 8, 4), ask(2, 8, 1, nodes=2)])
        assert started(made) == {1: ["b"]}
        assert begins(made) == {2: 4}

    @pytest.mark.parametrize("broken", [{"foreign_units": 1}, {"ready": False}, {"schedulable": False}, {"units": 4}])
    def test_nodes_that_cannot_be_whole_are_no_part_of_a_gang(self, broken: dict[str, int]) -> None:
        made = plan([h100("a"), h100("b", **broken)], [], [ask(1, 8, nodes=2)])
        assert begins(made) == {1: None}
        assert made.waits[0].estimate.reason == "waits for 2 whole free nodes; only 1 h100 can be"

    def test_small_ones_run_on_a_gangs_nodes_as_long_as_it_waits_anyway(self) -> None:
        made = plan(
            [h100("a"), h100("b")], [held(91, 3, ("b", [7]))], [ask(1, 8, 2, nodes=2), ask(2, 4, 3), ask(3, 4, 4)]
        )
        assert started(made) == {2: ["b"]}
        assert begins(made) == {1: 3, 3: 5}
