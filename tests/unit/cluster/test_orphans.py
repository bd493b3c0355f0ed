"""Dev servers that nobody owns are reported, then removed; those with an owner never."""

from datetime import timedelta

from gpudev.domain.cluster import Node, NodeShare
from gpudev.domain.ids import ReservationId
from gpudev.planning.cluster.orphans import count_orphans_as_foreign, decide_orphans
from gpudev.ports.cluster import ClusterState, ServerPhase, ServerState
from support.planner.situations import NOW, rid

GRACE = timedelta(seconds=30)


def servers(*numbers: int) -> dict[ReservationId, ServerState]:
    return {rid(number): ServerState(rid(number), ServerPhase.READY) for number in numbers}


def test_the_owned_are_left_alone_whatever_was_seen_before() -> None:
    decided = decide_orphans(servers(1), {rid(1)}, {rid(1): NOW - timedelta(days=1)}, NOW, GRACE)
    assert (decided.report, decided.remove, decided.first_observed) == ((), (), {})


def test_an_orphan_is_reported_and_removed_only_after_the_grace_period() -> None:
    first = decide_orphans(servers(1, 2), {rid(2)}, {}, NOW, GRACE)
    assert (first.report, first.remove) == ((rid(1),), ())
    almost = decide_orphans(servers(1), set(), first.first_observed, NOW + GRACE - timedelta(seconds=1), GRACE)
    assert (almost.report, almost.remove) == ((rid(1),), ())
    over = decide_orphans(servers(1), set(), almost.first_observed, NOW + GRACE, GRACE)
    assert (over.report, over.remove) == ((), (rid(1),))


def test_the_grace_period_begins_anew_when_it_had_gone_or_had_an_owner() -> None:
    seen = {rid(1): NOW - timedelta(days=1)}
    gone = decide_orphans({}, set(), seen, NOW, GRACE)
    assert gone.first_observed == {}
    back = decide_orphans(servers(1), set(), gone.first_observed, NOW, GRACE)
    assert (back.report, back.remove) == ((rid(1),), ())


def test_what_orphans_hold_is_used_and_what_the_owned_hold_is_not_counted_twice() -> None:
    held = {
        rid(1): ServerState(rid(1), ServerPhase.READY, node_shares=(NodeShare(0, "a", 2), NodeShare(1, "b", 3))),
        rid(2): ServerState(rid(2), ServerPhase.DEAD, node_shares=(NodeShare(0, "a", 1),)),
        rid(3): ServerState(rid(3), ServerPhase.READY, node_shares=(NodeShare(0, "a", 4),)),
    }
    nodes = (Node("a", "h100", 8, foreign_units=1), Node("b", "h100", 8, foreign_units=6), Node("c", "h100", 8))
    seen = ClusterState(NOW, nodes, held)
    counted = count_orphans_as_foreign(seen, {rid(3)})
    assert [node.foreign_units for node in counted.nodes] == [4, 8, 0]
    assert counted.servers == held
    assert count_orphans_as_foreign(seen, {rid(1), rid(2), rid(3)}) is seen
