"""Which groups of nodes are whose, and the numbers of a type's row from the cluster and the cloud together."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudev.domain.cluster import Allocation, GpuType, Node, NodeShare, load_catalogue
from gpudev.planning.cluster.reconcile_availability import assign_groups, plan_availability, unmatched_warnings
from gpudev.planning.queue.plan import Request
from gpudev.ports.cloud import NodeGroup
from support.planner.situations import NOW, h100, held, hours, rid
from support.planner.whole_plan import plan_queue

CATALOGUE = load_catalogue()
H100, T4, CPU = CATALOGUE["h100"], CATALOGUE["t4"], CATALOGUE["cpu-x86"]
PREFIX = "pytorch-gpu-dev"
TYPES = [*CATALOGUE, "h100-spot"]


def group(name: str, in_service: int = 1, desired: int = 1) -> NodeGroup:
    return NodeGroup(f"{PREFIX}-{name}", desired, in_service)


def whose(name: str, types: list[str] = TYPES) -> str:
    sorted_out = assign_groups([group(name)], PREFIX, types)
    if sorted_out.management:
        return "management"
    return next(iter(sorted_out.by_type), "nobody")


@pytest.mark.parametrize(("name", "owner"), [
    ("gpu-nodes-h100", "h100"),
    ("gpu-nodes-h100-1", "h100"),
    ("gpu-nodes-h100-us-east-2a", "h100"),
    ("gpu-nodes-h100_2", "h100"),
    ("gpu-nodes-h100-spot", "h100-spot"),
    ("gpu-nodes-h100-spot-2", "h100-spot"),
    ("gpu-nodes-h100-spotty", "h100"),
    ("gpu-nodes-h1000", "nobody"),
    ("gpu-nodes-h100x", "nobody"),
    ("gpu-nodes-a10", "nobody"),
    ("gpu-nodes-", "nobody"),
    ("gpu-nodes-cpu-x86-1", "cpu-x86"),
    ("cpu-nodes", "management"),
    ("cpu-nodes-1", "management"),
    ("cpu-nodesque", "nobody"),
])  # fmt: skip
def test_a_group_belongs_to_the_longest_type_name_that_it_bears_whole(name: str, owner: str) -> None:
    assert whose(name) == owner


def test_a_namesake_of_a_type_that_is_not_known_counts_for_the_type_whose_name_it_bears() -> None:
    assert whose("gpu-nodes-h100-spot", ["h100"]) == "h100"


def test_groups_of_another_prefix_are_not_ours() -> None:
    assert not assign_groups([NodeGroup("other-gpu-nodes-h100", 1, 1)], PREFIX, TYPES).by_type


def test_a_group_named_after_no_type_is_told() -> None:
    (warning,) = unmatched_warnings(assign_groups([group("gpu-nodes-h1000")], PREFIX, TYPES))
    assert "pytorch-gpu-dev-gpu-nodes-h1000" in warning


def numbers(
    gpu_type: GpuType, nodes: list[Node], groups: list[NodeGroup] | None, holdings: Sequence[Allocation] = ()
) -> dict[str, int]:
    known = None if groups is None else assign_groups(groups, PREFIX, TYPES)
    row = plan_availability(gpu_type, nodes, holdings, known, at=NOW, by="me").row
    return {
        "total": row.total_cluster_gpus,
        "available": row.available_gpus,
        "most": row.max_reservable,
        "full": row.full_nodes_available,
        "running": row.running_instances,
        "desired": row.desired_capacity,
        "per_node": row.max_per_node,
    }


ALL = ("total", "available", "most", "full", "running", "desired", "per_node")
TWO_GROUPS = [group("gpu-nodes-h100-a", 2, 3), group("gpu-nodes-h100-b", 1, 1)]


@pytest.mark.parametrize(("case", "gpu_type", "nodes", "groups", "holdings", "expected"), [
    # 1. Query ASGs: all that match are added up, InService and desired apart.
    ("several groups", H100, [h100(n) for n in "abc"], TWO_GROUPS, [], (24, 24, 24, 3, 3, 4, 8)),
    ("another's groups", H100, [h100("a")], [group("gpu-nodes-h100-spot", 7, 7)], [], (8, 8, 8, 1, 1, 1, 8)),
    # 2. Total: of the nodes Kubernetes knows, ready or not; running x GPUs per instance where it knows none.
    ("no node joined yet", H100, [], TWO_GROUPS, [], (24, 0, 0, 0, 3, 4, 8)),
    ("one has not joined", H100, [h100("a"), h100("b")], TWO_GROUPS, [], (16, 16, 16, 2, 3, 4, 8)),
    ("one is not ready", H100, [h100("a"), h100("b", ready=False)], TWO_GROUPS, [], (16, 8, 8, 1, 3, 4, 8)),
    ("no cloud", H100, [h100("a")], None, [], (8, 8, 8, 1, 1, 1, 8)),
    ("no group", H100, [h100("a")], [], [], (8, 8, 8, 1, 1, 1, 8)),
    ("an empty group", H100, [], [group("gpu-nodes-h100", 0, 2)], [], (0, 0, 0, 0, 0, 2, 8)),
    # 3 and 4. Used by pods, ours or not, ready and uncordoned nodes only.
    ("foreign pods", H100, [h100("a", foreign_units=3)], None, [], (8, 5, 4, 0, 1, 1, 8)),
    ("our pods", H100, [h100("a")], None, [held(1, 1, ("a", range(6)))], (8, 2, 2, 0, 1, 1, 8)),
    ("cordoned", H100, [h100("a", schedulable=False)], None, [], (8, 0, 0, 0, 1, 1, 8)),
    # 5. Full nodes.
    ("full and not", H100, [h100("a"), h100("b", foreign_units=1)], None, [], (16, 15, 8, 1, 2, 2, 8)),
    # 6. Max reservable: up to four whole nodes, else the best single one; others one node; CPU one slot.
    ("five whole nodes", H100, [h100(n) for n in "abcde"], None, [], (40, 40, 32, 5, 5, 5, 8)),
    ("three whole nodes", H100, [h100(n) for n in "abc"], None, [], (24, 24, 24, 3, 3, 3, 8)),
    ("no whole node", H100, [h100(n, foreign_units=2) for n in "abc"], None, [], (24, 18, 4, 0, 3, 3, 8)),
    ("single-node type", T4, [Node("t", "t4", 4), Node("u", "t4", 4)], None, [], (8, 8, 4, 2, 2, 2, 4)),
    # CPU nodes: three user slots each, one per reservation.
    ("CPU slots", CPU, [Node("c", "cpu-x86", 3), Node("d", "cpu-x86", 3)], None, [], (6, 6, 1, 2, 2, 2, 0)),
    ("CPU slots taken", CPU, [Node("c", "cpu-x86", 3)], None,
     [held(n, 1, ("c", [0]), gpu_type="cpu-x86") for n in (1, 2, 3)], (3, 0, 0, 0, 1, 1, 0)),
    ("CPU group without nodes", CPU, [], [group("gpu-nodes-cpu-x86", 2, 2)], [], (6, 0, 0, 0, 2, 2, 0)),
    ("management nodes", CPU, [], [group("cpu-nodes", 3, 3)], [], (0, 0, 0, 0, 0, 0, 0)),
    ("labelled management node", CPU, [Node("c", "cpu-x86", 3)], [group("cpu-nodes", 3, 3)], [], (3, 3, 1, 1, 1, 1, 0)),
])  # fmt: skip
def test_every_line_of_the_algorithm(
    case: str,
    gpu_type: GpuType,
    nodes: list[Node],
    groups: list[NodeGroup] | None,
    holdings: list[Allocation],
    expected: tuple[int, ...],
) -> None:
    assert numbers(gpu_type, nodes, groups, holdings) == dict(zip(ALL, expected, strict=True)), case


def test_a_type_without_a_group_is_told_with_the_pattern() -> None:
    warnings = plan_availability(H100, [], [], assign_groups([], PREFIX, TYPES), at=NOW, by="me").warnings
    assert "pytorch-gpu-dev-gpu-nodes-h100*" in warnings[0]
    assert plan_availability(H100, [], [], None, at=NOW, by="me").warnings == ()
    with_group = assign_groups([group("gpu-nodes-h100")], PREFIX, TYPES)
    assert plan_availability(H100, [], [], with_group, at=NOW, by="me").warnings == ()


def test_cpu_types_need_no_group_of_their_own_beside_management_nodes() -> None:
    management = assign_groups([group("cpu-nodes")], PREFIX, TYPES)
    assert plan_availability(CPU, [], [], management, at=NOW, by="me").warnings == ()
    assert plan_availability(CPU, [], [], assign_groups([], PREFIX, TYPES), at=NOW, by="me").warnings


@st.composite
def clusters(draw: st.DrawFn, gpu_type: GpuType) -> tuple[list[Node], list[Allocation], list[NodeGroup]]:
    nodes: list[Node] = []
    holdings: list[Allocation] = []
    size = gpu_type.units_per_node
    for number in range(draw(st.integers(0, 6))):
        units = draw(st.sampled_from([size, size, size, max(1, size // 2)]))
        foreign = draw(st.sampled_from([0, 0, 0, 1, units]))
        nodes.append(
            Node(
                f"n{number}",
                gpu_type.name,
                units,
                ready=draw(st.integers(0, 5)) > 0,
                schedulable=draw(st.integers(0, 5)) > 0,
                foreign_units=foreign,
            )
        )
        used = draw(st.integers(0, units - foreign))
        if used:
            until = draw(st.sampled_from([None, NOW + hours(1), NOW - hours(1)]))
            holdings.append(Allocation(rid(number + 1), gpu_type.name, (NodeShare(0, f"n{number}", used),), until))
    return nodes, holdings, [group(f"gpu-nodes-{gpu_type.name}", draw(st.integers(0, 9)), draw(st.integers(0, 9)))]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([H100, T4, CPU]).flatmap(lambda t: st.tuples(st.just(t), clusters(t))))
def test_the_queue_would_start_an_allowed_count_now_exactly_when_it_is_at_most_max_reservable(
    facts: tuple[GpuType, tuple[list[Node], list[Allocation], list[NodeGroup]]],
) -> None:
    gpu_type, (nodes, holdings, groups) = facts
    most = numbers(gpu_type, nodes, groups, holdings)["most"]
    for count in gpu_type.allowed_counts():
        node_count = gpu_type.node_count(count)
        per_node = max(1, count // node_count)
        request = Request(rid(99), 1, gpu_type.name, per_node, node_count, hours(1), slots=gpu_type.is_cpu)
        starts = bool(plan_queue(nodes, holdings, [request], NOW).starts)
        assert starts == (max(1, count) <= most)
