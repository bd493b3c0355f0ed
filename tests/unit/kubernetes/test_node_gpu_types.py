"""Nodes of clusters that nobody prepared for us: how their GPU types are found, and what daemons leave of them."""

from dataclasses import replace

import pytest

from gpudev.adapters.kubernetes.cache.object_records import to_node_record
from gpudev.adapters.kubernetes.objects.compute_resources import CpuMemory, compute_share
from gpudev.adapters.kubernetes.observation.node_state import compute_node_states, find_gpu_type_by_product
from gpudev.domain.cluster import Node, load_catalogue
from support.kubernetes.objects import SETTINGS, Object, node, node_record, own_pod, pod, pod_record

CATALOGUE = load_catalogue()
FEATURE_DISCOVERY = "nvidia.com/gpu.product"


def see(made: Object, *pods: Object) -> Node | str:
    seen = compute_node_states(
        [to_node_record(made, SETTINGS.gpu_type_label, SETTINGS.gpu_resource)],
        lambda _: [pod_record(one) for one in pods],
        CATALOGUE,
        SETTINGS,
    )
    return seen.nodes[0] if seen.nodes else seen.ignored[made["metadata"]["name"]]


def type_of(made: Object) -> str:
    found = see(made)
    assert isinstance(found, Node), found
    return found.gpu_type


@pytest.mark.parametrize(
    ("key", "says", "expected"),
    [
        (FEATURE_DISCOVERY, "NVIDIA-H100-80GB-HBM3", "h100"),
        (FEATURE_DISCOVERY, "NVIDIA-A100-SXM4-80GB", "a100"),
        (FEATURE_DISCOVERY, "Tesla-T4", "t4"),
        (FEATURE_DISCOVERY, "NVIDIA-A10G", "a10g"),
        ("cloud.google.com/gke-accelerator", "nvidia-tesla-t4", "t4"),
        ("cloud.google.com/gke-accelerator", "nvidia-h100-mega-80gb", "h100"),
        ("cloud.google.com/gke-accelerator", "nvidia-l4", "l4"),
        ("karpenter.k8s.aws/instance-gpu-name", "l4", "l4"),
        ("eks.amazonaws.com/instance-gpu-name", "h200", "h200"),
    ],
)
def test_what_others_call_a_nodes_gpus_tells_its_type(key: str, says: str, expected: str) -> None:
    made = node(gpu_type=None, instance_type="some.size")
    made["metadata"]["labels"][key] = says
    assert type_of(made) == expected


@pytest.mark.parametrize("product", ["NVIDIA-A10", "NVIDIA-L40S", "NVIDIA-GH200-480GB", "NVIDIA-H20", "Quadro-P4000"])
def test_a_product_that_only_looks_like_a_type_is_none_of_it_and_named(product: str) -> None:
    made = node(gpu_type=None)
    made["metadata"]["labels"][FEATURE_DISCOVERY] = product
    found = see(made)
    assert isinstance(found, str) and product in found


def test_our_label_comes_first_and_then_the_instance_type() -> None:
    made = node(gpu_type="h200", instance_type="p4d.24xlarge")
    made["metadata"]["labels"][FEATURE_DISCOVERY] = "NVIDIA-L4"
    assert type_of(made) == "h200"
    del made["metadata"]["labels"]["GpuType"]
    assert type_of(made) == "a100"


@pytest.mark.parametrize(
    ("product", "word"),
    [("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "MIG slices"), ("Tesla-T4-SHARED", "time-shared")],
)
def test_parts_of_gpus_are_no_gpus_unless_our_label_says_so(product: str, word: str) -> None:
    """The machine is a p4d.24xlarge, and says that it has 56 GPUs."""
    made = node(gpu_type=None, instance_type="p4d.24xlarge", gpus=56)
    made["metadata"]["labels"][FEATURE_DISCOVERY] = product
    found = see(made)
    assert isinstance(found, str) and word in found and product in found
    made["metadata"]["labels"]["GpuType"] = "t4"
    assert type_of(made) == "t4"


def test_the_type_that_says_most_of_a_product_is_meant_and_two_that_say_the_same_are_not() -> None:
    a100 = CATALOGUE["a100"]
    large, spot, other = (replace(a100, name=name) for name in ("a100-80gb", "a100-spot", "80gb-a100"))
    product = "NVIDIA-A100-SXM4-80GB"
    assert find_gpu_type_by_product(product, [a100, large, spot]) == large
    assert find_gpu_type_by_product(product, [a100, spot]) == a100
    assert find_gpu_type_by_product(product, [a100, large, other]) is None
    assert find_gpu_type_by_product(product, [a100, replace(large, is_active=False)]) == a100, (
        "the other is not offered"
    )


# --- What daemons leave -----------------------------------------------------------------------------------------


def daemon(name: str = "daemon", kind: str = "DaemonSet", **requests: str) -> Object:
    made = pod(name, requests=requests)
    made["metadata"]["ownerReferences"] = [{"kind": kind, "name": name, "controller": True}]
    return made


def small(gpus: int = 1) -> Object:
    return node(gpu_type="t4", gpus=gpus, cpu="3920m", memory="12Gi")


def free_on(made: Object, *pods: Object) -> int:
    found = see(made, *pods)
    assert isinstance(found, Node)
    return found.units - found.foreign_units


@pytest.mark.parametrize("kind", ["DaemonSet", "Node"])
def test_daemons_that_ask_for_much_of_a_small_node_leave_its_gpu_usable(kind: str) -> None:
    assert free_on(small(), daemon(kind=kind, cpu="800m", memory="2Gi")) == 1


def test_the_same_by_a_pod_that_comes_and_goes_takes_the_gpu() -> None:
    assert free_on(small(), pod(requests={"cpu": "800m"})) == 0


def test_daemons_that_ask_for_everything_leave_nothing() -> None:
    assert free_on(small(), daemon(cpu="3900m")) == 0


def test_a_share_beside_daemons_fits_beside_them() -> None:
    demand = pod_record(daemon(cpu="800m", memory="2Gi")).requests
    for units in (1, 2, 3, 4):
        one = compute_share(CpuMemory(3920, 12288), units, 4, demand)
        assert one.cpu_millis * 4 // units + demand.cpu_millis <= 3920
        assert one.memory_mib * 4 // units + demand.memory_mib <= 12288
        assert one.cpu_millis >= 750 * units, "and is no less than need be"


def test_daemons_within_what_is_kept_anyway_change_no_share() -> None:
    room = CpuMemory(192_000, 2_097_152)
    little = pod_record(daemon(cpu="5", memory="20Gi")).requests
    assert compute_share(room, 1, 8, little) == compute_share(room, 1, 8)


def test_a_gpu_beside_dev_servers_that_were_made_larger_is_free_only_when_its_share_is_there() -> None:
    """Seven of eight were made when there were no daemons to speak of; now there is one that takes an eighth."""
    room = node_record().allocatable
    assert room is not None
    before = compute_share(room, 1, 8)
    made = own_pod(gpus=7, phase="Running")
    amounts = {"cpu": f"{7 * before.cpu_millis}m", "memory": f"{7 * before.memory_mib}Mi", "nvidia.com/gpu": "7"}
    made["spec"]["containers"][0]["resources"]["requests"] = amounts
    assert free_on(node(), made) == 8, "its row holds them"
    assert free_on(node(), made, daemon(cpu="24")) == 7
    assert free_on(node(), daemon(cpu="24")) == 8
