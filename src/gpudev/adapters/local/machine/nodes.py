"""This machine as nodes with GPUs: described in a file, found through NVML, or simulated.

It decides which nodes exist. Who uses them is the concern of `gpu_use` and of the planner.
"""

import os
import re
import socket
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from gpudev.adapters.local.machine.nvml import NvmlGpu, find_gpus
from gpudev.domain.cluster import SLOTS_PER_CPU_NODE, GpuType, load_catalogue
from gpudev.domain.errors import Invalid

SIMULATED_TYPE = "h100"
SIMULATED_GPUS = 8
LOCAL_INSTANCE = "local"
"""The instance type of this machine's GPU types in the catalogue."""
_GB = 1024**3
_NODE_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_TYPE_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_MAX_GPUS = 16
_FIELDS = frozenset({"name", "gpu_type", "gpus", "nvml", "cpus", "memory_gb"})


@dataclass(frozen=True, slots=True)
class LocalNode:
    name: str
    gpu_type: str
    gpus: int
    """0: a CPU node, which has user slots instead."""
    simulated: bool
    cpus: int
    memory: int
    """Bytes."""
    devices: tuple[tuple[str, ...], ...] = ()
    """Device files of real GPUs, by the GPU's number on this node."""
    nvml: tuple[int, ...] = ()
    """NVML's numbers of real GPUs, by the GPU's number on this node."""

    @property
    def units(self) -> int:
        return self.gpus or SLOTS_PER_CPU_NODE


@dataclass(frozen=True, slots=True)
class LocalNodes:
    nodes: tuple[LocalNode, ...]
    source: str
    """Where the nodes were found, as text for people."""

    @property
    def has_real_gpus(self) -> bool:
        return any(node.nvml for node in self.nodes)

    def find_node(self, name: str) -> LocalNode | None:
        return next((node for node in self.nodes if node.name == name), None)


def load_nodes(nodes_file: Path | None) -> LocalNodes:
    """The nodes of this machine. Raises Invalid, naming the place, when the file is invalid.

    The file is TOML with one table per node; this machine runs all of them::

        [[node]]
        name = "a"          # lower-case letters, digits, '-' and '.'
        gpu_type = "h100"   # one of the catalogue, or another short name; cpu-x86 and cpu-arm are CPU nodes
        gpus = 8            # default: the catalogue's number (0 for a CPU node, which has 3 user slots)

        [[node]]
        name = "b"
        gpu_type = "a100"
        nvml = [1, 2]       # real GPUs of this machine, by NVML's (nvidia-smi's) numbers; without it: simulated
        cpus = 16           # default: an equal part of this machine's
        memory_gb = 64      # default: an equal part of this machine's
    """
    if nodes_file is not None:
        return LocalNodes(_read_nodes_file(nodes_file), source=f"described in {nodes_file}")
    gpus = find_gpus()
    if gpus:
        return LocalNodes(_detected_nodes(gpus), source="NVIDIA GPUs found through NVML")
    cpus, memory = _machine_part(1)
    simulated = LocalNode("sim-1", SIMULATED_TYPE, SIMULATED_GPUS, simulated=True, cpus=cpus, memory=memory)
    return LocalNodes((simulated,), source="simulated: no NVIDIA GPU was found on this machine")


def gpu_types(nodes: LocalNodes) -> list[GpuType]:
    """The types of this machine's nodes, as rows of the catalogue."""
    catalogue = load_catalogue()
    counts = Counter(node.gpu_type for node in nodes.nodes)
    types: dict[str, GpuType] = {}
    for node in nodes.nodes:
        known = catalogue.get(node.gpu_type)
        description = known.description if known else node.gpu_type
        types[node.gpu_type] = GpuType(
            name=node.gpu_type,
            instance_type=LOCAL_INSTANCE,
            max_gpus=node.gpus,
            cpus=node.cpus,
            memory_gb=max(1, node.memory // _GB),
            multinode=node.gpus > 0 and (counts[node.gpu_type] > 1 or (known is not None and known.multinode)),
            description=f"{description} (simulated)" if node.simulated else description,
        )
    return list(types.values())


def gpu_type_name(device_name: str) -> str:
    """The catalogue's name for an NVML device name. Devices outside the catalogue get a short name of their own."""
    words = re.findall(r"[a-z0-9]+", device_name.lower())
    for word in words:
        if word in load_catalogue():
            return str(word)
    vendors = ("nvidia", "tesla", "geforce", "quadro")
    return "-".join(word for word in words if word not in vendors)[:32].strip("-") or "gpu"


def _detected_nodes(gpus: Sequence[NvmlGpu]) -> tuple[LocalNode, ...]:
    """One node per type: all GPUs of a node have the same type."""
    by_type: dict[str, list[NvmlGpu]] = {}
    for gpu in gpus:
        by_type.setdefault(gpu_type_name(gpu.name), []).append(gpu)
    host = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().split(".")[0].lower()).strip("-")[:40] or "node"
    cpus, memory = _machine_part(len(by_type))
    return tuple(
        LocalNode(
            name=host if len(by_type) == 1 else f"{host}-{gpu_type}",
            gpu_type=gpu_type,
            gpus=len(same_type),
            simulated=False,
            cpus=cpus,
            memory=memory,
            devices=tuple(gpu.device_files for gpu in same_type),
            nvml=tuple(gpu.index for gpu in same_type),
        )
        for gpu_type, same_type in by_type.items()
    )


def _read_nodes_file(path: Path) -> tuple[LocalNode, ...]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Invalid(f"cannot read the nodes file {path}: {error.strerror}", field="nodes_file") from error
    except ValueError as error:  # bad TOML (the message names the line) or bad UTF-8
        raise Invalid(f"invalid nodes file {path}: {error}", field="nodes_file") from error
    tables = document.get("node")
    is_list = isinstance(tables, list) and all(isinstance(table, dict) for table in tables)
    if not is_list or not tables or document.keys() != {"node"}:
        raise Invalid(f"invalid nodes file {path} (expected [[node]] tables and nothing else)", field="node")
    part = _machine_part(len(tables))
    real = {gpu.index: gpu for gpu in find_gpus()} if any("nvml" in table for table in tables) else {}
    nodes: list[LocalNode] = []
    for number, table in enumerate(tables, start=1):
        try:
            node = _parse_node(table, part, real)
            _check_distinct(node, nodes)
        except Invalid as error:
            raise Invalid(f"{path}, node {number}: {error}", field=error.field) from error
        nodes.append(node)
    return tuple(nodes)


def _parse_node(table: dict[str, Any], part: tuple[int, int], real: dict[int, NvmlGpu]) -> LocalNode:
    unknown = sorted(table.keys() - _FIELDS)
    if unknown:
        raise Invalid(f"no field named {unknown[0]!r} (expected {', '.join(sorted(_FIELDS))})", field=unknown[0])
    gpu_type = _parse_name(table, "gpu_type", _TYPE_NAME)
    known = load_catalogue().get(gpu_type)
    nvml = _parse_nvml(table, real)
    node = LocalNode(
        name=_parse_name(table, "name", _NODE_NAME),
        gpu_type=gpu_type,
        gpus=_parse_number(table, "gpus", 0, _MAX_GPUS, known.max_gpus if known and not nvml else len(nvml)),
        simulated=False,
        cpus=_parse_number(table, "cpus", 1, 4096, part[0]),
        memory=_parse_number(table, "memory_gb", 1, 65536, 0) * _GB or part[1],
        devices=tuple(real[index].device_files for index in nvml),
        nvml=nvml,
    )
    if known and known.is_cpu and node.gpus:
        raise Invalid(f"invalid gpus {node.gpus} (expected none: {gpu_type} is a CPU type)", field="gpus")
    if nvml and node.gpus != len(nvml):
        raise Invalid(f"invalid gpus {node.gpus} (expected {len(nvml)}, as many as nvml names)", field="gpus")
    if node.gpus == 0 and not (known and known.is_cpu):
        raise Invalid(f"gpus is missing (expected the number of {gpu_type} GPUs of this node)", field="gpus")
    return replace(node, simulated=node.gpus > 0 and not nvml)


def _check_distinct(node: LocalNode, others: Sequence[LocalNode]) -> None:
    for other in others:
        if other.name == node.name:
            raise Invalid(f"the node name {node.name!r} is taken", field="name")
        if other.gpu_type == node.gpu_type and other.gpus != node.gpus:
            raise Invalid(
                f"invalid gpus {node.gpus} (expected {other.gpus}, as on node {other.name!r}: "
                f"all nodes of type {node.gpu_type} must have the same number)",
                field="gpus",
            )
        if set(other.nvml) & set(node.nvml):
            raise Invalid(f"nvml names a GPU that belongs to node {other.name!r}", field="nvml")


def _parse_nvml(table: dict[str, Any], real: dict[int, NvmlGpu]) -> tuple[int, ...]:
    value = table.get("nvml", [])
    if not isinstance(value, list) or not all(type(index) is int for index in value) or len(set(value)) != len(value):
        raise Invalid(f"invalid nvml {str(value)[:80]!r} (expected different numbers, such as [0, 1])", field="nvml")
    missing = [index for index in value if index not in real]
    if missing:
        raise Invalid(f"this machine has no NVIDIA GPU number {missing[0]}", field="nvml")
    return tuple(value)


def _parse_name(table: dict[str, Any], field: str, pattern: re.Pattern[str]) -> str:
    value = table.get(field)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise Invalid(f"invalid {field} {str(value)[:80]!r} (expected lower-case letters, digits and '-')", field=field)
    return value


def _parse_number(table: dict[str, Any], field: str, minimum: int, maximum: int, default: int) -> int:
    if field not in table:
        return default
    value = table[field]
    if type(value) is not int or not minimum <= value <= maximum:
        raise Invalid(
            f"invalid {field} {str(value)[:80]!r} (expected a number from {minimum} to {maximum})", field=field
        )
    return value


def _machine_part(parts: int) -> tuple[int, int]:
    """An equal share of this machine's CPUs and memory."""
    return max(1, (os.cpu_count() or 1) // parts), psutil.virtual_memory().total // parts
