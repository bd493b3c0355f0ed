"""Dev servers that nobody owns are reported, then removed; those with an owner never."""

from datetime import timedelta

from gpudev.domain.ids import ReservationId
from gpudev.planning.orphans import decide_orphans
from gpudev.ports.cluster import Phase, ServerSeen
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
