"""What this machine is said to be: from a file, from NVML, or simulated."""

from pathlib import Path

import pytest

from gpudev.adapters.local.machine import nodes as nodes_module
from gpudev.adapters.local.machine.nodes import gpu_type_name, gpu_types, load_nodes
from gpudev.adapters.local.machine.nvml import NvmlGpu
from gpudev.domain.errors import Invalid


@pytest.fixture
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes_module, "find_gpus", list)


@pytest.fixture
def some_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["NVIDIA H200", "NVIDIA H200", "NVIDIA GeForce RTX 4090"]
    gpus = [NvmlGpu(index, name, (f"/dev/nvidia{index}",)) for index, name in enumerate(names)]
    monkeypatch.setattr(nodes_module, "find_gpus", lambda: gpus)


def described(folder: Path, text: str) -> nodes_module.LocalNodes:
    path = folder / "nodes.toml"
    path.write_text(text)
    return load_nodes(path)


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA A10G", "a10g"),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA", "gpu"),
    ],
)
def test_a_devices_name_becomes_its_type(device: str, expected: str) -> None:
    assert gpu_type_name(device) == expected


def test_without_gpus_eight_are_simulated_and_said_to_be(no_gpus: None) -> None:
    found = load_nodes(None)
    assert [(node.name, node.gpu_type, node.gpus, node.simulated) for node in found.nodes] == [
        ("sim-1", "h100", 8, True)
    ]
    assert "simulated" in found.source
    assert not found.has_real_gpus
    assert "(simulated)" in gpu_types(found)[0].description


def test_real_gpus_make_one_node_per_type_with_their_own_device_files(some_gpus: None) -> None:
    found = load_nodes(None)
    by_type = {node.gpu_type: node for node in found.nodes}
    assert by_type["h200"].devices == (("/dev/nvidia0",), ("/dev/nvidia1",))
    assert by_type["rtx-4090"].devices == (("/dev/nvidia2",),)
    assert by_type["rtx-4090"].nvml == (2,)
    assert not any(node.simulated for node in found.nodes)
    types = {row.name: row for row in gpu_types(found)}
    assert types["h200"].max_gpus == 2
    assert types["h200"].multinode
    assert types["rtx-4090"].max_gpus == 1
    assert not types["rtx-4090"].multinode


def test_a_file_describes_nodes(tmp_path: Path, some_gpus: None) -> None:
    found = described(
        tmp_path,
        """
        [[node]]
        name = "a"
        gpu_type = "t4"
        [[node]]
        name = "b"
        gpu_type = "t4"
        gpus = 4
        cpus = 3
        memory_gb = 7
        [[node]]
        name = "c"
        gpu_type = "cpu-x86"
        [[node]]
        name = "d"
        gpu_type = "rtx-4090"
        nvml = [2]
        """,
    )
    a, b, c, d = found.nodes
    assert (a.gpus, a.units, a.simulated) == (4, 4, True)
    assert (b.cpus, b.memory) == (3, 7 * 1024**3)
    assert (c.gpus, c.units, c.simulated) == (0, 3, False)
    assert (d.gpus, d.simulated, d.devices) == (1, False, (("/dev/nvidia2",),))
    types = {row.name: row for row in gpu_types(found)}
    assert types["t4"].multinode  # two equal nodes
    assert types["cpu-x86"].is_cpu
    assert not types["cpu-x86"].multinode
    assert types["t4"].instance_type == "local"
    assert str(tmp_path) in found.source


@pytest.mark.parametrize(
    ("text", "said", "field"),
    [
        ("[[node]\n", "line 1", "nodes_file"),
        ("", "[[node]]", "node"),
        ("node = [1]", "[[node]]", "node"),
        ('[[node]]\nname="a"\ngpu_type="h100"\n[other]', "nothing else", "node"),
        ('[[node]]\ngpu_type="h100"', "node 1: invalid name", "name"),
        ('[[node]]\nname="../a"\ngpu_type="h100"', "node 1: invalid name", "name"),
        ('[[node]]\nname="a"\ngpu_type="H 100"', "invalid gpu_type", "gpu_type"),
        ('[[node]]\nname="a"\ngpu_type="h100"\ngpus="8"', "invalid gpus '8' (expected a number", "gpus"),
        ('[[node]]\nname="a"\ngpu_type="h100"\ngpus=true', "invalid gpus 'True' (expected a number", "gpus"),
        ('[[node]]\nname="a"\ngpu_type="h100"\ngpus=-1', "invalid gpus '-1' (expected a number", "gpus"),
        ('[[node]]\nname="a"\ngpu_type="h100"\ngpus=0', "expected the number", "gpus"),
        ('[[node]]\nname="a"\ngpu_type="mine"', "expected the number", "gpus"),
        ('[[node]]\nname="a"\ngpu_type="cpu-arm"\ngpus=1', "CPU type", "gpus"),
        ('[[node]]\nname="a"\ngpu_type="h100"\nmemory=1', "no field named 'memory'", "memory"),
        ('[[node]]\nname="a"\ngpu_type="h100"\nnvml=[0]', "no NVIDIA GPU number 0", "nvml"),
        ('[[node]]\nname="a"\ngpu_type="h100"\nnvml=[0,0]', "different numbers", "nvml"),
        ('[[node]]\nname="a"\ngpu_type="h100"\n' * 2, "node 2: the node name 'a' is taken", "name"),
        (
            '[[node]]\nname="a"\ngpu_type="h100"\ngpus=8\n[[node]]\nname="b"\ngpu_type="h100"\ngpus=4',
            "node 2: invalid gpus 4 (expected 8, as on node 'a'",
            "gpus",
        ),
    ],
)
def test_a_file_that_is_not_right_is_refused_with_the_place(
    tmp_path: Path, no_gpus: None, text: str, said: str, field: str
) -> None:
    with pytest.raises(Invalid) as refused:
        described(tmp_path, text)
    assert said in str(refused.value)
    assert refused.value.field == field


def test_a_file_that_is_missing_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="No such file"):
        load_nodes(tmp_path / "none.toml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(Invalid, match="invalid nodes file"):
        load_nodes(tmp_path / "binary")
