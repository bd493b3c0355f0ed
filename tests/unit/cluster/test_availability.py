"""The numbers people see, and that the planner means the same by them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudev.domain.cluster import Allocation, GpuType, Node, NodeShare, load_catalogue
from gpudev.planning.cluster.availability import Availability, compute_availability, free_units
from gpudev.planning.queue.plan import Request
from support.planner.situations import NOW, h100, held, hours, rid
from support.planner.whole_plan import plan_queue

CATALOGUE = load_catalogue()
H100, T4, CPU = CATALOGUE["h100"], CATALOGUE["t4"], CATALOGUE["cpu-x86"]


def numbers(seen: Availability) -> tuple[int, int, int, int]:
    return seen.total, seen.available, seen.max_reservable, seen.full_nodes_available


@pytest.mark.parametrize(("gpu_type", "nodes", "holdings", "expected"), [
    (H100, [], [], (0, 0, 0, 0)),
    (H100, [h100("a")], [], (8, 8, 8, 1)),
    (H100, [h100("a"), h100("b")], [], (16, 16, 16, 2)),
    (H100, [h100(name) for name in "abcdef"], [], (48, 48, 32, 6)),
    (H100, [h100("a"), h100("b")], [held(1, 1, ("a", [0]))], (16, 15, 8, 1)),
    (H100, [h100("a"), h100("b")], [held(1, 1, ("a", [0])), held(2, 1, ("b", [0, 1]))], (16, 13, 4, 0)),
    (H100, [h100("a"), h100("b", ready=False)], [], (16, 8, 8, 1)),
    (H100, [h100("a"), h100("b", schedulable=False)], [], (16, 8, 8, 1)),
    (H100, [h100("a", foreign_units=3)], [], (8, 5, 4, 0)),
    (H100, [h100("a", units=4), h100("b", units=4)], [], (8, 8, 4, 2)),
    (H100, [h100("a", units=16)], [], (16, 16, 8, 1)),
    (H100, [h100("a")], [held(1, None, ("a", range(8)))], (8, 0, 0, 0)),
    (H100, [h100("a", units=2)], [held(1, 1, ("a", range(4)))], (2, 0, 0, 0)),
    (H100, [h100("a")], [held(1, 1, ("gone", range(8)))], (8, 8, 8, 1)),
    (H100, [Node("t", "t4", 4)], [], (0, 0, 0, 0)),
    (T4, [Node("t", "t4", 4), Node("u", "t4", 4)], [], (8, 8, 4, 2)),
    (CPU, [Node("c", "cpu-x86", 3)], [], (3, 3, 1, 1)),
    (CPU, [Node("c", "cpu-x86", 3)], [held(n, 1, ("c", [n]), gpu_type="cpu-x86") for n in range(3)], (3, 0, 0, 0)),
])  # fmt: skip
def test_the_formulas(
    gpu_type: GpuType, nodes: list[Node], holdings: list[Allocation], expected: tuple[int, int, int, int]
) -> None:
    assert numbers(compute_availability(gpu_type, nodes, holdings)) == expected


def test_what_describes_the_type_and_its_nodes() -> None:
    seen = compute_availability(H100, [h100("a"), h100("b", ready=False), Node("t", "t4", 4)], [])
    assert (seen.gpu_type, seen.running_instances, seen.max_per_node) == ("h100", 2, 8)
    assert compute_availability(CPU, [], []).max_per_node == 0


@st.composite
def clusters(draw: st.DrawFn, gpu_type: GpuType) -> tuple[list[Node], list[Allocation]]:
    sizes = [3] if gpu_type.is_cpu else [gpu_type.max_gpus] * 3 + [2, 3, 2 * gpu_type.max_gpus]
    nodes, holdings = [], []
    for number in range(draw(st.integers(0, 6))):
        units = draw(st.sampled_from(sizes))
        used = draw(st.sampled_from([0, 0, 0, 1, 2, units]))
        node = Node(
            f"n{number}",
            gpu_type.name,
            units,
            ready=draw(st.integers(0, 5)) > 0,
            schedulable=draw(st.integers(0, 5)) > 0,
            foreign_units=draw(st.sampled_from([0, 0, 0, 0, 1])),
        )
        nodes.append(node)
        if used:
            holdings.append(
                Allocation(rid(number + 1), gpu_type.name, (NodeShare(0, node.name, used),), NOW + hours(1))
            )
    return nodes, holdings


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([H100, T4, CPU]).flatmap(lambda t: st.tuples(st.just(t), clusters(t))))
def test_the_planner_starts_a_count_now_exactly_when_it_is_reservable(
    facts: tuple[GpuType, tuple[list[Node], list[Allocation]]],
) -> None:
    gpu_type, (nodes, holdings) = facts
    most = compute_availability(gpu_type, nodes, holdings).max_reservable
    for count in gpu_type.allowed_counts():
        node_count = gpu_type.node_count(count)
        units = max(1, count // node_count)
        request = Request(rid(99), 1, gpu_type.name, units, node_count, hours(1), slots=gpu_type.is_cpu)
        starts = bool(plan_queue(nodes, holdings, [request], NOW).starts)
        assert starts == (max(1, count) <= most)
    assert most == 0 or (most == 1 if gpu_type.is_cpu else most in gpu_type.allowed_counts())


def test_free_units_name_every_node_given() -> None:
    nodes = [h100("a"), h100("b", ready=False)]
    assert free_units(nodes, [held(1, 1, ("a", range(3)), ("b", range(8)))]) == {"a": 5, "b": 0}
