"""Where those with a disk are placed, and what they are told while they wait for it."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpudev.domain.cluster import Allocation, Node, ZoneConstraint
from gpudev.domain.ids import new_disk_id
from gpudev.domain.queue import Estimate
from gpudev.domain.reservations.lifecycle import Status
from gpudev.planning.queue.incremental_planner import IncrementalPlanner
from gpudev.planning.queue.plan import Queued, Request, Start
from gpudev.planning.queue.zone_constraints import constrain_to_disks
from gpudev.ports.disks import DiskLocation
from support.planner.reservation_factory import preparing
from support.planner.situations import NOW, ask, disk_in, h100, held, hours, rid
from support.planner.whole_plan import plan_queue

A, B = h100("a", zone="zone-a"), h100("b", zone="zone-b")
SOON = timedelta(seconds=30)


def answer(
    nodes: Sequence[Node], *asked: Request, holdings: Sequence[Allocation] = (), **more: Any
) -> dict[int, Start | Queued]:
    plan = plan_queue(nodes, holdings, asked, NOW, **more)
    return {each.reservation_id.int >> 96: each for each in (*plan.starts, *plan.waits)}


def test_a_disk_decides_where_its_reservation_starts() -> None:
    told = answer((A, B), ask(1, 2, anchor=disk_in("zone-b")), ask(2, 2, anchor=disk_in("zone-a")), ask(3, 2))
    nodes = {who: [s.node for s in each.shares] for who, each in told.items() if isinstance(each, Start)}
    assert nodes == {1: ["b"], 2: ["a"], 3: ["a"]}


def test_who_waits_for_a_zone_is_told_so_with_what_is_free_there() -> None:
    told = answer((A, B), ask(1, 2, anchor=disk_in("zone-b")), holdings=(held(9, 3, ("b", range(7))),))[1]
    assert isinstance(told, Queued)
    assert (told.estimate.latest, told.estimate.nodes) == (NOW + hours(3), ("b",))
    assert told.estimate.reason == (
        "waits for zone zone-b, where disk 'data' is; 1 of 2 GPUs free on any h100 node; "
        "first fit when reservation 00000009 ends"
    )


def test_nobody_waits_behind_one_who_waits_for_another_zone() -> None:
    full = (held(9, 3, ("b", range(8))),)
    told = answer((A, B), ask(1, 8, anchor=disk_in("zone-b")), ask(2, 8), holdings=full)
    assert isinstance(told[1], Queued)
    assert isinstance(told[2], Start)


@pytest.mark.parametrize(
    ("nodes", "units", "why"),
    [
        ((A,), 1, "there is no h100 node"),
        ((A, replace(B, ready=False)), 1, "no h100 node is ready"),
        ((A, replace(B, units=4)), 8, "needs 8 GPUs on one node; the largest h100 node ready has 4"),
    ],
)
def test_one_whose_zone_has_nothing_for_it_is_told_why(nodes: Sequence[Node], units: int, why: str) -> None:
    told = answer(nodes, ask(1, units, anchor=disk_in("zone-b")))[1]
    assert isinstance(told, Queued)
    assert told.estimate.latest is None
    assert told.estimate.reason == f"waits for zone zone-b, where disk 'data' is; {why}"


def test_a_gang_is_where_its_disk_is_with_all_its_members() -> None:
    nodes = (A, B, h100("c", zone="zone-b"))
    told = answer(nodes, ask(1, 8, nodes=2, anchor=disk_in("zone-b")), ask(2, 8, nodes=3, anchor=disk_in("zone-b")))
    assert isinstance(told[1], Start)
    assert [share.node for share in told[1].shares] == ["b", "c"]
    assert isinstance(told[2], Queued)
    assert "only 2 h100 can be" in told[2].estimate.reason


def test_nodes_to_which_zones_mean_nothing_take_every_disk() -> None:
    assert isinstance(answer((h100("x"),), ask(1, 2, anchor=disk_in("zone-b")))[1], Start)


@pytest.mark.parametrize(
    ("home_in_hours", "away_in_hours", "move", "node"),
    [
        (1, None, SOON, "b"),  # nobody is there: at once
        (1, 0.5, SOON, "b"),
        (1, 0.5, None, "a"),
        (1, 0.5, hours(1), "a"),
        (0.5, 0.5, SOON, "a"),
        (None, None, SOON, "a"),
    ],
)
def test_a_disk_moves_only_where_that_is_faster_than_waiting(
    home_in_hours: float | None, away_in_hours: float | None, move: timedelta | None, node: str
) -> None:
    busy = [("a", home_in_hours, 8), ("b", away_in_hours, 9)]
    holdings = tuple(held(number, until, (name, range(8))) for name, until, number in busy if until is not None)
    told = answer((A, B), ask(1, 8, anchor=disk_in("zone-a", move=move)), holdings=holdings)[1]
    assert (
        [share.node for share in told.shares] == [node] if isinstance(told, Start) else told.estimate.nodes == (node,)
    )
    if isinstance(told, Queued) and node == "b":
        assert told.estimate.reason.startswith(
            "disk 'data' will be moved out of zone zone-a, where waiting would take longer;"
        )


def test_a_promise_is_not_kept_where_the_disk_no_longer_is() -> None:
    busy = (held(8, 2, ("a", range(8))), held(9, 1, ("b", range(8))))
    told = {rid(1): Estimate(1, NOW + hours(1), None, "", ("b",))}
    wait = answer((A, B), ask(1, 8, anchor=disk_in("zone-a")), holdings=busy, promises=told)[1]
    assert isinstance(wait, Queued)
    assert wait.estimate.nodes == ("a",)


def test_a_live_plan_is_made_anew_when_a_disk_can_move() -> None:
    busy = [held(9, 3, ("a", range(8)))]
    live = IncrementalPlanner("h100", [A, B], busy, [ask(1, 8, anchor=disk_in("zone-a"))], now=NOW)
    assert live.collect_starts(NOW) == ()
    turn = live.update([A, B], busy, [ask(1, 8, anchor=disk_in("zone-a", move=SOON))], NOW)
    assert turn.remade
    assert [share.node for start in turn.starts for share in start.shares] == ["b"]


def test_only_disks_that_are_somewhere_keep_their_reservations_there() -> None:
    saved, unsaved, unmade = new_disk_id(), new_disk_id(), new_disk_id()
    rows = [
        preparing(reservation_id=rid(number), status=Status.QUEUED, shares=(), disk_id=disk, disk_name="data")
        for number, disk in enumerate((saved, unsaved, unmade, None), 1)
    ]
    places = {saved: DiskLocation("zone-a", is_saved=True), unsaved: DiskLocation("zone-b")}
    assert constrain_to_disks(rows, places, SOON) == {
        rows[0].reservation_id: ZoneConstraint("data", frozenset({"zone-a"}), SOON),
        rows[1].reservation_id: ZoneConstraint("data", frozenset({"zone-b"}), None),
    }
