"""How long things take at most, and the coming hours of a node."""

from dataclasses import replace
from datetime import timedelta

import pytest

from gpudev.domain.cluster import NodeShare
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.cluster.availability import PlannedUse, UsageStep, usage_timeline
from gpudev.planning.queue.queue_input import to_allocation, to_request
from gpudev.settings import TimingSettings
from support.factories import make_reservation
from support.planner.situations import NOW, h100, held, hours, rid

MINUTE = timedelta(minutes=1)
TIMING = TimingSettings(preparing_margin=2 * MINUTE, teardown_margin=MINUTE)
ROW = make_reservation(
    reservation_id=rid(1),
    seq=7,
    gpu_count=16,
    node_count=2,
    duration=hours(4),
)
PLACED = replace(ROW, shares=(NodeShare(0, "a", 8), NodeShare(1, "b", 8)))


def test_who_waits_asks_for_the_time_to_prepare_and_to_clear_away_as_well() -> None:
    request = to_request(ROW, TIMING)
    assert (request.units_per_node, request.node_count, request.slots) == (8, 2, False)
    assert request.duration == hours(4) + 3 * MINUTE
    assert to_request(replace(ROW, gpu_count=0, node_count=1), TIMING).slots


@pytest.mark.parametrize(
    ("row", "freed_by"),
    [
        (replace(PLACED, status=Status.PREPARING, preparing_at=NOW - MINUTE), NOW + 1 * MINUTE + hours(4) + MINUTE),
        (replace(PLACED, status=Status.PREPARING, preparing_at=NOW - 9 * MINUTE), NOW + hours(4) + MINUTE),
        (replace(PLACED, status=Status.ACTIVE, expires_at=NOW + hours(3)), NOW + hours(3) + MINUTE),
        (replace(PLACED, status=Status.CANCELLED, reservation_ended=NOW - MINUTE / 2), NOW + MINUTE / 2),
    ],
)
def test_what_is_held_is_free_again_by(row: Reservation, freed_by: object) -> None:
    holding = to_allocation(row, NOW, TIMING)
    assert holding is not None
    assert holding.until == freed_by


def test_becoming_ready_in_time_makes_nobody_behind_later() -> None:
    preparing = replace(PLACED, status=Status.PREPARING, preparing_at=NOW)
    before = to_allocation(preparing, NOW, TIMING)
    ready_at = NOW + 2 * MINUTE
    active = replace(preparing, status=Status.ACTIVE, expires_at=ready_at + hours(4))
    after = to_allocation(active, ready_at, TIMING)
    assert before is not None
    assert after is not None
    assert before.until == after.until


def test_who_has_nothing_holds_nothing() -> None:
    assert to_allocation(ROW, NOW, TIMING) is None
    assert to_allocation(replace(PLACED, status=Status.CANCELLED, released_at=NOW), NOW, TIMING) is None


class TestTimeline:
    until = NOW + hours(12)

    def test_an_empty_node_is_one_step(self) -> None:
        assert usage_timeline(h100("a"), [], [], NOW, self.until) == [UsageStep(NOW, 0)]

    def test_what_runs_ends_and_what_is_planned_begins(self) -> None:
        running = [held(1, 2, ("a", range(8))), held(2, 3, ("b", range(8))), held(3, None, ("a", ()))]
        planned = [
            PlannedUse(NOW + hours(2), NOW + hours(6), ("a",), 4),
            PlannedUse(NOW + hours(4), NOW + hours(20), ("a", "b"), 4),
        ]
        assert usage_timeline(h100("a"), running, planned, NOW, self.until) == [
            UsageStep(NOW, 8),
            UsageStep(NOW + hours(2), 4),
            UsageStep(NOW + hours(4), 8),
            UsageStep(NOW + hours(6), 4),
        ]

    def test_foreign_work_never_ends(self) -> None:
        assert usage_timeline(h100("a", foreign_units=3), [], [], NOW, self.until) == [UsageStep(NOW, 3)]

    def test_what_should_have_ended_is_over_now_and_never_less_than_nothing_is_used(self) -> None:
        assert usage_timeline(h100("a"), [held(1, -1, ("a", range(8)))], [], NOW, self.until) == [UsageStep(NOW, 0)]
