"""The chart of the coming hours, drawn from values."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudev.cli.commands.cluster.plan_chart import ASCII, BLOCKS, PlanChart, choose_slots, format_ruler, peak_use
from gpudev.wire.queue import ClusterPlan, PlannedStart, PlanNode, PlanStep, TypePlan
from support.client.estimates import make_node, make_start
from support.client.time_zones import zone

NOW = datetime(2026, 3, 2, 12, 17, tzinfo=UTC)
CHART = """\
CET                  |14:00  |16:00  |18:00  |20:00  |22:00  |Tue
h100: 0 of 16 GPUs free now, 1 of 3 nodes closed, 2 queued
  h100-a     8/8  █████▄▄▄▶████████████████▃▃▃▃▃▃▃▃▃▃▃▃············
  h100-b     8/8  █████████████▄▄▄█████████▃▃▃▃▃▃▃▃▃▃▃▃············
  h100-c  closed  █████████▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃××××××××××××××××××××××××"""
IN_ASCII = """\
CET                  |14:00  |16:00  |18:00  |20:00  |22:00  |Tue
h100: 0 of 16 GPUs free now, 1 of 3 nodes closed, 2 queued
  h100-a     8/8  #####444>################333333333333............
  h100-b     8/8  #############444#########333333333333............
  h100-c  closed  #########3333333333333333xxxxxxxxxxxxxxxxxxxxxxxx"""


@pytest.fixture(autouse=True)
def in_paris() -> Iterator[None]:
    """Without its summer time, which is another test's matter."""
    with zone("CET-1"):
        yield


def after(**hours: float) -> datetime:
    return NOW + timedelta(**hours)


def make_type_plan(*nodes: PlanNode, waiting: list[PlannedStart] | None = None, **changes: Any) -> TypePlan:
    starts = waiting or []
    base = {"gpu_type": "h100", "nodes": list(nodes), "waiting": starts, "waiting_in_all": len(starts)}
    return TypePlan(**(base | changes))


def make_plan(*types: TypePlan, hours: float = 12) -> ClusterPlan:
    return ClusterPlan(begins=NOW, until=after(hours=hours), gpu_types=list(types))


def mine(*nodes: str, hours: float = 2, position: int = 2) -> PlannedStart:
    return make_start(position, mine=True, latest=after(hours=hours), nodes=list(nodes))


def draw(plan: ClusterPlan, *, width: int = 80, every_node: bool = False, blocks: bool = True) -> list[str]:
    return PlanChart(width, BLOCKS if blocks else ASCII, every_node).lines(plan)


def example() -> ClusterPlan:
    return make_plan(
        make_type_plan(
            make_node("h100-a", 8, NOW, (0, 8), (1, 4), (2, 8), (6, 3), (9, 0)),
            make_node("h100-b", 8, NOW, (0, 8), (3, 4), (4, 8), (6, 3), (9, 0)),
            make_node("h100-c", 8, NOW, (0, 8), (2, 3), (6, 0), offers=False),
            waiting=[make_start(1), mine("h100-a")],
        )
    )


@pytest.mark.parametrize(("blocks", "chart"), [(True, CHART), (False, IN_ASCII)])
def test_a_row_per_node_shows_how_full_it_is_when(blocks: bool, chart: str) -> None:
    assert "\n".join(draw(example(), width=72, blocks=blocks)) == chart


def test_the_example_in_the_documentation_is_what_is_drawn() -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "cli.md"
    assert f"{CHART}\n\n{BLOCKS.legend}\n" in page.read_text(encoding="utf-8")


def test_a_mark_on_the_ruler_stands_where_that_time_begins() -> None:
    plan = make_plan(make_type_plan(make_node("n", 8, NOW, (0, 8), (5 + 43 / 60, 0))))  # until 19:00 CET
    marks, _, row = draw(plan, width=72)
    bar = row.index("█")
    assert row[bar:].index("·") == marks.index("|18:00") - bar + 4


@pytest.mark.parametrize(
    ("used", "total", "block", "digit"),
    [
        (0, 8, "·", "."),
        (1, 8, "▁", "1"),
        (4, 8, "▄", "4"),
        (7, 8, "▇", "7"),
        (8, 8, "█", "#"),
        (1, 3, "▃", "1"),
        (2, 3, "▅", "2"),
        (1, 1, "█", "#"),
        (1, 16, "▁", "1"),
        (15, 16, "▇", "9"),
        (1, 8000, "▁", "1"),
        (7999, 8000, "▇", "9"),
    ],
)
def test_only_what_is_full_looks_full_and_only_what_is_free_looks_free(
    used: int, total: int, block: str, digit: str
) -> None:
    plan = make_plan(make_type_plan(make_node("n", total, NOW, (0, used))))
    assert set(draw(plan)[2].split()[-1]) == {block}
    assert set(draw(plan, blocks=False)[2].split()[-1]) == {digit}


def test_a_closed_node_promises_nothing_even_where_it_is_idle() -> None:
    idle, other = make_node("idle", 8, NOW, (0, 0), offers=False), make_node("open", 8, NOW, (0, 8))
    _, heading, row, _ = draw(make_plan(make_type_plan(idle, other)))
    assert "0 of 8 GPUs free now, 1 of 2 nodes closed" in heading
    assert "·" not in row
    assert "×" in row


def test_ones_own_start_is_marked_on_every_node_of_a_gang_and_nowhere_else() -> None:
    nodes = [make_node(name, 8, NOW, (0, 8)) for name in ("a", "b", "c")]
    theirs = make_start(1, latest=after(hours=1), nodes=["c"])
    rows = draw(make_plan(make_type_plan(*nodes, waiting=[theirs, mine("a", "b")])))[2:]
    assert ["▶" in row for row in rows] == [True, True, False]


@pytest.mark.parametrize("hours", [-1.0, 12.5, 100.0])
def test_a_start_outside_of_the_chart_is_not_marked(hours: float) -> None:
    plan = make_plan(make_type_plan(make_node("a", 8, NOW, (0, 8)), waiting=[mine("a", hours=hours)]))
    assert "▶" not in "\n".join(draw(plan))


def test_a_cpu_type_has_slots_and_a_type_without_nodes_says_so() -> None:
    cpu = make_type_plan(make_node("cpu-0", 3, NOW, (0, 1)), gpu_type="cpu-x86")
    none = make_type_plan(gpu_type="t4", waiting=[make_start(1)])
    lines = draw(make_plan(cpu, none))
    assert "cpu-x86: 2 of 3 slots free now" in lines
    assert "t4: no nodes, 1 queued" in lines


def many(count: int) -> ClusterPlan:
    nodes = [make_node(f"n{number:04}", 8, NOW, (0, 8), (3, number % 8)) for number in range(count)]
    return make_plan(make_type_plan(*nodes, waiting=[mine("n0777")]))


def test_of_many_nodes_some_are_shown_mine_among_them_and_the_rest_as_one() -> None:
    _, heading, together, *rows, more = draw(many(1000))
    assert "0 of 8,000 GPUs free now" in heading
    assert together.split()[:3] == ["1,000", "open", "8000/8000"]
    assert together.split()[-1].startswith("█" * 10)
    assert together.split()[-1].endswith("▄"), "3.5 of 8 on average"
    assert [row.split()[0] for row in rows] == [f"n{number:04}" for number in (0, 1, 2, 3, 4, 5, 6, 777)]
    assert more == "  and 992 more nodes; --all shows them"


def test_all_nodes_are_shown_when_asked_for() -> None:
    lines = draw(many(1000), every_node=True)
    assert len(lines) == 1002
    assert not any("more nodes" in line for line in lines)


def test_few_nodes_are_all_shown() -> None:
    assert len(draw(many(40))) == 42


def test_the_sum_of_many_nodes_leaves_closed_ones_out() -> None:
    nodes = [make_node(f"n{number:02}", 8, NOW, (0, 8 if number else 0), offers=number != 0) for number in range(50)]
    _, heading, together, *_ = draw(make_plan(make_type_plan(*nodes)))
    assert "0 of 392 GPUs free now, 1 of 50 nodes closed" in heading
    assert together.split()[:3] == ["49", "open", "392/392"]


def test_long_names_lose_their_domain_and_their_middle() -> None:
    domain = "us-east-2.compute.internal"
    nodes = [make_node(f"ip-10-0-0-{number}.{domain}", 8, NOW, (0, 0)) for number in range(2)]
    assert [row.split()[0] for row in draw(make_plan(make_type_plan(*nodes)))[2:]] == ["ip-10-0-0-0", "ip-10-0-0-1"]
    alike = [make_node(f"node.{number}.{domain}.example.com", 8, NOW, (0, 0)) for number in range(2)]
    [first, second] = [row.split()[0] for row in draw(make_plan(make_type_plan(*alike)))[2:]]
    assert len(first) == len(second) == 24
    long = [make_node(f"gke-production-cluster-pool-gpu-{end}", 8, NOW, (0, 0)) for end in ("x7k2", "b9q1")]
    assert [row.split()[0][-4:] for row in draw(make_plan(make_type_plan(*long)))[2:]] == ["x7k2", "b9q1"]


steps_of_a_day = st.lists(st.tuples(st.integers(0, 24 * 60), st.integers(0, 8)), max_size=12)


@given(steps_of_a_day, st.floats(0.05, 72), st.integers(10, 200), st.integers(0, 72 * 60))
def test_what_looks_free_is_free(steps: list[tuple[int, int]], hours: float, columns: int, minute: int) -> None:
    """At any moment, its column shows at least what is in use then."""
    told = [PlanStep(at=NOW, used_gpus=8)]
    told += [PlanStep(at=after(minutes=at), used_gpus=used) for at, used in sorted(steps)]
    slots = choose_slots(NOW, after(hours=hours), columns)
    moment = after(minutes=minute)
    column = slots.column_of(moment)
    assert slots.count <= columns
    if column is None:
        assert moment >= after(hours=hours)
        return
    used = [step.used_gpus for step in told if step.at <= moment][-1]
    shown = peak_use(told, slots)[column]
    begins, ends = slots.first + column * slots.length, slots.first + (column + 1) * slots.length
    before = [step.used_gpus for step in told if step.at <= begins][-1:]
    within = [step.used_gpus for step in told if begins < step.at < ends]
    assert shown >= used
    assert shown == max(before + within), "and no more than at some moment of it"


@given(st.integers(20, 250), st.floats(0.05, 72), st.booleans(), st.integers(1, 60), st.text("abc-.", max_size=60))
def test_no_row_is_wider_than_the_terminal(width: int, hours: float, blocks: bool, count: int, name: str) -> None:
    nodes = [make_node(f"{name}{number}", 8, NOW, (0, number % 9)) for number in range(count)]
    marks, _, *rows = draw(make_plan(make_type_plan(*nodes), hours=hours), width=width, blocks=blocks)
    rows = [row for row in rows if "more nodes" not in row]
    room = max(width, 28)  # narrower, there is no place for name, load and time beside each other
    assert max(len(line) for line in [marks, *rows]) <= room
    assert rows


@given(st.integers(8, 230), st.floats(0.05, 72), st.integers(0, 24 * 60))
def test_the_ruler_tells_times_in_order_and_at_their_column(columns: int, hours: float, shift: int) -> None:
    begins = after(minutes=shift)
    slots = choose_slots(begins, begins + timedelta(hours=hours), columns)
    line = format_ruler(slots)
    assert len(line) <= slots.count
    for column, sign in enumerate(line):
        if sign == "|":
            local = (slots.first + column * slots.length).astimezone()
            label = line[column + 1 :].split("|")[0].strip()
            assert label == (f"{local:%a}" if (local.hour, local.minute) == (0, 0) else f"{local:%H:%M}")


def test_columns_begin_at_round_times_of_the_readers_clock() -> None:
    with zone("IST-5:30"):
        slots = choose_slots(NOW, after(hours=12), 13)
        assert f"{slots.first:%H:%M}" == "17:00"
        assert slots.count == 13


def test_the_ruler_keeps_to_the_clock_when_it_is_put_forward() -> None:
    """From two to three on 29 March 2026 in Paris."""
    with zone("CET-1CEST,M3.5.0,M10.5.0/3"):
        begins = datetime(2026, 3, 28, 23, 0, tzinfo=UTC)
        marks = format_ruler(choose_slots(begins, begins + timedelta(hours=6), 80))
        assert marks.split() == ["|Sun", "|01:00", "|03:00", "|04:00", "|05:00", "|06:00"]


@pytest.mark.parametrize("day", [datetime(2026, 3, 28, 12, 0, tzinfo=UTC), datetime(2026, 10, 24, 12, 0, tzinfo=UTC)])
@pytest.mark.parametrize("columns", [40, 60, 120])
def test_every_day_is_named_also_after_the_clock_was_changed(day: datetime, columns: int) -> None:
    """Columns of two hours and more begin at odd times from then on, and none at midnight."""
    with zone("CET-1CEST,M3.5.0,M10.5.0/3"):
        marks = format_ruler(choose_slots(day, day + timedelta(hours=72), columns)).split()
        assert [mark for mark in marks if mark[1:].isalpha()] == ["|Sun", "|Mon", "|Tue"]
