"""Dev servers that nobody owns are reported, then removed; those with an owner never."""

from datetime import timedelta

from gpudev.domain.cluster import Node, Share
from gpudev.domain.ids import ReservationId
from gpudev.planning.cluster.orphans import count_orphans, decide_orphans
from gpudev.ports.cluster import ClusterSeen, Phase, ServerSeen
from planning.situations import NOW, rid

GRACE = timedelta(seconds=30)


def servers(*numbers: int) -> dict[ReservationId, ServerSeen]:
    return {rid(number): ServerSeen(rid(number), Phase.READY) for number in numbers}


def test_the_owned_are_left_alone_whatever_was_seen_before() -> None:
    decided = decide_orphans(servers(1), {rid(1)}, {rid(1): NOW - timedelta(days=1)}, NOW, GRACE)
    assert (decided.report, decided.remove, decided.first_seen) == ((), (), {})


def test_an_orphan_is_reported_and_removed_only_after_the_grace_period() -> None:
    first = decide_orphans(servers(1, 2), {rid(2)}, {}, NOW, GRACE)
    assert (first.report, first.remove) == ((rid(1),), ())
    almost = decide_orphans(servers(1), set(), first.first_seen, NOW + GRACE - timedelta(seconds=1), GRACE)
    assert (almost.report, almost.remove) == ((rid(1),), ())
    over = decide_orphans(servers(1), set(), almost.first_seen, NOW + GRACE, GRACE)
    assert (over.report, over.remove) == ((), (rid(1),))


def test_the_grace_period_begins_anew_when_it_had_gone_or_had_an_owner() -> None:
    seen = {rid(1): NOW - timedelta(days=1)}
    gone = decide_orphans({}, set(), seen, NOW, GRACE)
    assert gone.first_seen == {}
    back = decide_orphans(servers(1), set(), gone.first_seen, NOW, GRACE)
    assert (back.report, back.remove) == ((rid(1),), ())


def test_what_orphans_hold_is_used_and_what_the_owned_hold_is_not_counted_twice() -> None:
    held = {
        rid(1): ServerSeen(rid(1), Phase.READY, held=(Share(0, "a", 2), Share(1, "b", 3))),
        rid(2): ServerSeen(rid(2), Phase.DEAD, held=(Share(0, "a", 1),)),
        rid(3): ServerSeen(rid(3), Phase.READY, held=(Share(0, "a", 4),)),
    }
    nodes = (Node("a", "h100", 8, foreign_units=1), Node("b", "h100", 8, foreign_units=6), Node("c", "h100", 8))
    seen = ClusterSeen(NOW, nodes, held)
    counted = count_orphans(seen, {rid(3)})
    assert [node.foreign_units for node in counted.nodes] == [4, 8, 0]
    assert counted.servers == held
    assert count_orphans(seen, {rid(1), rid(2), rid(3)}) is seen
