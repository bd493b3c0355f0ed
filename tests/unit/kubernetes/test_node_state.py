"""What nodes offer, from nodes and pods as the API server writes them."""

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpudev.adapters.kubernetes.cache.object_records import to_node_record, to_pod_record
from gpudev.adapters.kubernetes.objects.compute_resources import parse_quantity
from gpudev.adapters.kubernetes.observation.node_state import NodeStates, compute_node_states, gpu_types_by_instance
from gpudev.domain.cluster import Node, load_catalogue
from support.kubernetes.objects import SETTINGS, Object, ago, node, node_record, own_pod, pod, pod_record, ready_pod

CATALOGUE = load_catalogue()


def see(made: Object, pods: Sequence[Object] = (), **settings: Any) -> NodeStates:
    chosen = replace(SETTINGS, **settings)
    record = to_node_record(made, chosen.gpu_type_label, chosen.gpu_resource)
    records = [one for one in (to_pod_record(each, chosen.namespace, chosen.gpu_resource) for each in pods) if one]
    return compute_node_states(
        [record], lambda _: [one for one in records if one.node == record.name], CATALOGUE, chosen
    )


def only(seen: NodeStates) -> Node:
    assert len(seen.nodes) == 1, seen.ignored
    return seen.nodes[0]


def test_a_free_node_offers_its_allocatable_gpus() -> None:
    found = only(see(node(gpus=7)))
    assert (found.gpu_type, found.units, found.foreign_units) == ("h100", 7, 0)
    assert found.ready and found.schedulable


@pytest.mark.parametrize("phase", ["Pending", "Running", "Unknown"])
def test_foreign_gpus_count_from_the_moment_a_pod_is_bound(phase: str) -> None:
    assert only(see(node(), [pod(gpus=3, phase=phase)])).foreign_units == 3


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_holds_nothing(phase: str) -> None:
    assert only(see(node(), [pod(gpus=3, phase=phase)])).foreign_units == 0


def test_a_pod_on_its_way_out_still_holds_its_gpus() -> None:
    assert only(see(node(), [pod(gpus=3, deleting=True)])).foreign_units == 3


def test_a_pod_that_is_not_bound_takes_nothing_of_any_node() -> None:
    assert only(see(node(), [pod(gpus=3, node=None, phase="Pending")])).foreign_units == 0


def test_our_own_pods_are_not_foreign_because_their_rows_hold_the_units() -> None:
    assert only(see(node(), [ready_pod(gpus=2), pod(gpus=1)])).foreign_units == 1


def test_another_installations_dev_servers_are_foreign() -> None:
    assert only(see(node(), [ready_pod(gpus=2, namespace="gpu-dev-staging")])).foreign_units == 2


def test_more_foreign_gpus_than_there_are_leave_nothing_and_no_debt() -> None:
    """A GPU has fallen out: the device plugin no longer counts it, and its user is still there."""
    assert only(see(node(gpus=2), [pod(gpus=4)])).foreign_units == 2


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": "2"}}}] * 2}, 4),
        ({"initContainers": [{"name": "i", "resources": {"limits": {"nvidia.com/gpu": "4"}}}]}, 4),
        ({"initContainers": [{"name": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}, 1),
        (
            {
                "initContainers": [
                    {"name": "s", "restartPolicy": "Always", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
                ]
            },
            2,
        ),
        (
            {
                "initContainers": [
                    {"name": "s", "restartPolicy": "Always", "resources": {"limits": {"nvidia.com/gpu": "1"}}},
                    {"name": "i", "resources": {"limits": {"nvidia.com/gpu": "4"}}},
                ]
            },
            5,
        ),
        (
            {
                "initContainers": [
                    {"name": "i", "resources": {"limits": {"nvidia.com/gpu": "4"}}},
                    {"name": "s", "restartPolicy": "Always", "resources": {"limits": {"nvidia.com/gpu": "1"}}},
                ]
            },
            4,
        ),
        ({"overhead": {"nvidia.com/gpu": "1"}}, 2),
    ],
    ids=["summed", "largest init", "small init", "sidecar", "init after sidecar", "init before sidecar", "overhead"],
)
def test_a_pods_gpus_are_counted_as_the_scheduler_counts_them(spec: Object, expected: int) -> None:
    assert only(see(node(), [pod(gpus=1, spec=spec)])).foreign_units == expected


def test_processors_taken_by_foreign_work_make_gpus_unusable() -> None:
    """A dev server with one GPU of eight gets about an eighth of the processors; half of them are gone."""
    busy = pod(requests={"cpu": "96", "memory": "1Gi"})
    assert only(see(node(), [busy])).foreign_units == 4


def test_memory_taken_by_foreign_work_makes_gpus_unusable() -> None:
    busy = pod(requests={"memory": "2000Gi"})
    assert only(see(node(), [busy])).foreign_units == 8


def test_small_daemons_take_no_units() -> None:
    daemons = [pod(f"daemon-{number}", requests={"cpu": "500m", "memory": "1Gi"}) for number in range(10)]
    assert only(see(node(), daemons)).foreign_units == 0


def test_pod_level_resources_replace_the_containers_sum() -> None:
    busy = pod(requests={"cpu": "1"}, spec={"resources": {"requests": {"cpu": "96"}}})
    assert only(see(node(), [busy])).foreign_units == 4


def test_a_cpu_node_has_three_slots_whatever_gpus_say() -> None:
    made = node(gpu_type="cpu-x86", gpus=0, cpu="32", memory="64Gi")
    found = only(see(made, [pod(requests={"cpu": "100m"})]))
    assert (found.units, found.foreign_units) == (3, 0)


def test_a_pod_named_like_a_dev_server_takes_a_slot_of_a_cpu_node_whoever_made_it() -> None:
    made = node(gpu_type="cpu-x86", gpus=0, cpu="32", memory="64Gi")
    others = [pod("gpu-dev-1234abcd"), pod("gpu-dev-9876fedc"), pod("coredns")]
    assert only(see(made, others)).foreign_units == 2


def test_a_cpu_node_offers_slots_only_where_a_label_says_so() -> None:
    seen = see(node(gpu_type=None, instance_type="c7i.8xlarge", gpus=0, cpu="32", memory="64Gi"))
    assert (seen.nodes, list(seen.ignored)) == ((), ["n1"])


def test_foreign_work_takes_a_cpu_nodes_slots() -> None:
    made = node(gpu_type="cpu-x86", gpus=0, cpu="32", memory="64Gi")
    assert only(see(made, [pod(requests={"cpu": "16"})])).foreign_units == 2


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_a_node_that_is_not_known_to_be_ready_is_not(status: str) -> None:
    assert not only(see(node(ready=status))).ready


def test_a_node_without_a_ready_condition_is_not_ready() -> None:
    made = node()
    made["status"]["conditions"] = []
    assert not only(see(made)).ready


def test_a_cordoned_node_takes_no_new_work() -> None:
    found = only(see(node(unschedulable=True)))
    assert found.ready and not found.schedulable


@pytest.mark.parametrize(
    ("key", "effect", "schedulable"),
    [
        ("nvidia.com/gpu", "NoSchedule", True),
        ("team", "NoSchedule", False),
        ("team", "NoExecute", False),
        ("team", "PreferNoSchedule", True),
        ("node.kubernetes.io/disk-pressure", "NoSchedule", False),
    ],
)
def test_taints_that_our_pods_do_not_tolerate_close_a_node(key: str, effect: str, schedulable: bool) -> None:
    found = only(see(node(taints=[{"key": key, "effect": effect}])))
    assert found.schedulable is schedulable


def test_tolerated_taints_are_a_setting() -> None:
    made = node(taints=[{"key": "team", "value": "x", "effect": "NoSchedule"}])
    assert only(see(made, tolerated_taints=("team",))).schedulable


@pytest.mark.parametrize(
    ("preference", "addresses", "expected"),
    [
        ("external", [("InternalIP", "10.0.0.1"), ("ExternalIP", "1.2.3.4"), ("Hostname", "h")], "1.2.3.4"),
        ("external", [("InternalIP", "10.0.0.1"), ("Hostname", "h")], "10.0.0.1"),
        ("external", [("Hostname", "h")], "h"),
        ("internal", [("InternalIP", "10.0.0.1"), ("ExternalIP", "1.2.3.4")], "10.0.0.1"),
        ("internal", [("InternalIP", "10.0.0.1"), ("InternalIP", "fd00::1")], "10.0.0.1"),
        ("hostname", [("InternalIP", "10.0.0.1"), ("Hostname", "h")], "h"),
        ("external", [], ""),
    ],
)
def test_the_address_people_connect_to(preference: str, addresses: list[tuple[str, str]], expected: str) -> None:
    assert only(see(node(addresses=addresses), node_address=preference)).address == expected


def test_a_label_names_the_type_in_any_case() -> None:
    assert only(see(node(gpu_type="H100"))).gpu_type == "h100"


def test_without_a_label_the_instance_type_tells() -> None:
    assert only(see(node(gpu_type=None, instance_type="p4d.24xlarge"))).gpu_type == "a100"


def test_a_type_that_is_not_offered_keeps_its_nodes_and_gives_way_to_one_that_shares_its_instances() -> None:
    h100 = replace(CATALOGUE["h100"], is_active=False)
    assert gpu_types_by_instance({"h100": h100}) == {h100.instance_type: h100}
    spot = replace(CATALOGUE["h100"], name="h100-spot")
    assert gpu_types_by_instance({"h100": h100, "h100-spot": spot}) == {h100.instance_type: spot}
    assert gpu_types_by_instance({"h100": CATALOGUE["h100"], "h100-spot": spot}) == {}


def test_the_label_has_the_last_word_over_the_instance_type() -> None:
    assert only(see(node(gpu_type="h200", instance_type="p4d.24xlarge"))).gpu_type == "h200"


def test_the_labels_key_is_a_setting() -> None:
    made = node(gpu_type=None)
    made["metadata"]["labels"]["example.com/gpu"] = "b200"
    assert only(see(made, gpu_type_label="example.com/gpu")).gpu_type == "b200"


@pytest.mark.parametrize(
    ("labels", "word"),
    [
        ({"gpu_type": None}, "neither"),
        ({"gpu_type": None, "instance_type": "m5.large"}, "m5.large"),
        ({"gpu_type": "h1000", "instance_type": "p4d.24xlarge"}, "h1000"),
    ],
)
def test_nodes_of_no_known_type_are_left_out_and_said_to_be(labels: dict[str, Any], word: str) -> None:
    seen = see(node(**labels))
    assert not seen.nodes
    assert word in seen.ignored["n1"]


def test_nodes_come_in_the_order_of_their_names() -> None:
    records = [node_record(name) for name in ("b", "a", "c")]
    seen = compute_node_states(records, lambda _: [], CATALOGUE, SETTINGS)
    assert [one.name for one in seen.nodes] == ["a", "b", "c"]


def test_heartbeats_and_foreign_conditions_leave_a_record_as_it_was() -> None:
    before, after = node(), node()
    after["status"]["conditions"][0]["lastHeartbeatTime"] = ago(0)
    after["metadata"]["annotations"] = {"volumes": "attached"}
    kept = [
        compute_node_states([node_record()], lambda _: [], CATALOGUE, SETTINGS).nodes,
        see(before).nodes,
        see(after).nodes,
    ]
    assert kept[0] == kept[1] == kept[2]
    first, second = pod(), pod()
    second["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    assert pod_record(first) == pod_record(second)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("100m", 0.1),
        ("1.5", 1.5),
        ("2k", 2000),
        ("64Gi", 64 * 1024**3),
        ("1e3", 1000),
        ("500u", 0.0005),
        ("2E", 2e18),
    ],
)
def test_quantities_are_read_in_all_their_forms(text: str, value: float) -> None:
    assert parse_quantity(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "x", "1Q", "1 Gi", "Gi"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid quantity"):
        parse_quantity(text)


def test_a_thousand_nodes_with_eight_thousand_pods_stay_small() -> None:
    tracemalloc.start()
    try:
        nodes = [node_record(f"node-{number}") for number in range(1000)]
        foreign = [pod_record(pod(f"job-{number}", node=f"node-{number % 1000}")) for number in range(5500)]
        own = [pod_record(ready_pod(node=f"node-{number % 1000}")) for number in range(2500)]
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(nodes) + len(foreign) + len(own) == 9000
    assert size < 24 * 1024 * 1024


def test_an_own_pod_without_a_readable_id_is_foreign() -> None:
    made = own_pod(gpus=2)
    made["metadata"]["labels"]["gpu-dev/reservation-id"] = "nonsense"
    assert only(see(node(), [made])).foreign_units == 2
