"""Whose turn it is when use decides."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from gpudev.domain.access.users import FairShareUsage
from gpudev.domain.ids import UserId
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.queue.fair_share import compute_fair_ranks
from support.factories import make_reservation
from support.planner.situations import NOW, hours, rid

PATIENCE = hours(24)


def wants(
    seq: int,
    user: int,
    gpus: int = 8,
    long: float = 1,
    *,
    ago: float = 0,
    status: Status = Status.QUEUED,
    gpu_type: str = "h100",
) -> Reservation:
    return make_reservation(
        status,
        reservation_id=rid(seq),
        seq=seq,
        user_id=UserId(user),
        username=f"user-{user}",
        gpu_type=gpu_type,
        gpu_count=gpus,
        duration=hours(long),
        created_at=NOW - hours(ago),
    )


def order(
    *rows: Reservation, usage: dict[int, FairShareUsage] | None = None, patience: timedelta = PATIENCE
) -> list[int]:
    known = {UserId(user): own for user, own in (usage or {}).items()}
    turns = compute_fair_ranks(rows, "h100", known, NOW, patience)
    seqs = {row.reservation_id: row.seq for row in rows}
    return [seqs[who] for who in sorted(turns, key=turns.__getitem__)]


def test_without_any_use_users_take_turns_in_the_order_they_came() -> None:
    assert order(wants(1, 1), wants(2, 1), wants(3, 1), wants(4, 2), wants(5, 3)) == [1, 4, 5, 2, 3]


def test_who_used_less_goes_first() -> None:
    assert order(wants(1, 1), wants(2, 2), usage={1: FairShareUsage(10), 2: FairShareUsage(9)}) == [2, 1]


def test_a_weight_of_two_may_use_twice_as_much() -> None:
    rows = (wants(1, 1), wants(2, 2))
    assert order(*rows, usage={1: FairShareUsage(10, weight=2), 2: FairShareUsage(6)}) == [1, 2]
    assert order(*rows, usage={1: FairShareUsage(10, weight=2), 2: FairShareUsage(4)}) == [2, 1]


def test_what_runs_counts_as_used_up_whatever_its_type() -> None:
    running = wants(1, 1, status=Status.ACTIVE, gpu_type="t4")
    assert order(running, wants(2, 1), wants(3, 2)) == [3, 2]


def test_large_requests_count_for_what_they_take() -> None:
    assert order(wants(1, 1, 8, 8), wants(2, 1), wants(3, 2, 1), wants(4, 2, 1)) == [1, 3, 4, 2]


def test_a_cpu_slot_counts_too() -> None:
    assert order(wants(1, 1, 0), wants(2, 1, 0), wants(3, 2, 0)) == [1, 3, 2]


def test_who_has_waited_long_enough_goes_first_in_the_order_of_arrival() -> None:
    rows = (wants(1, 1, ago=30), wants(2, 1, ago=25), wants(3, 2, ago=1), wants(4, 3))
    assert order(*rows, usage={1: FairShareUsage(1000)}) == [1, 2, 3, 4]


def test_other_types_have_their_own_line() -> None:
    turns = compute_fair_ranks([wants(1, 1, gpu_type="t4"), wants(2, 2)], "h100", {}, NOW, PATIENCE)
    assert turns == {rid(2): 0}


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from([0, 1, 8]), st.floats(0.1, 24), st.floats(0, 48))))
def test_everybody_has_a_turn_of_their_own_and_nobody_overtakes_their_own_earlier_request(
    asked: list[tuple[int, int, float, float]],
) -> None:
    rows = [
        wants(seq, user, gpus, long, ago=48 - seq / 100 - ago / 100)
        for seq, (user, gpus, long, ago) in enumerate(asked, 1)
    ]
    turns = compute_fair_ranks(rows, "h100", {}, NOW, PATIENCE)
    assert sorted(turns.values()) == list(range(len(rows)))
    for user in {row.user_id for row in rows}:
        own = [turns[row.reservation_id] for row in rows if row.user_id == user]
        assert own == sorted(own)
