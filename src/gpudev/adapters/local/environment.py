"""What sessions in a dev server find in their environment, and the greeting: pure, all of it data."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpudev.adapters.local.machine.isolation import IsolationMode
from gpudev.adapters.local.machine.launch_spec import InsidePaths, runtime_dir
from gpudev.adapters.local.machine.nodes import LocalNode
from gpudev.domain.cluster import NodeShare
from gpudev.domain.ids import short_id
from gpudev.ports.cluster import ServerSpec


@dataclass(frozen=True, slots=True)
class GangAddresses:
    """How the members of one dev server find each other."""

    address: str
    master_port: int
    ssh_ports: tuple[int, ...]


def member_hostname(spec: ServerSpec, rank: int) -> str:
    """People log in to rank 0, so that one carries the plain name."""
    return spec.pod_name if rank == 0 else f"{spec.pod_name}-{rank}"


def server_environment(
    spec: ServerSpec,
    share: NodeShare,
    node: LocalNode,
    *,
    mode: IsolationMode,
    uid: int,
    view: InsidePaths,
    gang: GangAddresses | None,
) -> Mapping[str, str]:
    environment = {
        **spec.environment,
        **visible_devices(share, node, mode),
        "GPU_DEV_RESERVATION_ID": str(spec.reservation_id),
        "GPU_DEV_POD_NAME": spec.pod_name,
        "GPU_DEV_NODE": share.node,
        "GPU_DEV_GPU_TYPE": spec.gpu_type,
        "GPU_DEV_GPU_COUNT": str(spec.gpu_count),
        "GPU_DEV_USER": spec.username,
        "WORKSPACE": view.workspace,
    }
    if spec.expires_at is not None:
        environment["GPU_DEV_EXPIRES_AT"] = spec.expires_at.isoformat()
    if spec.name is not None:
        environment["GPU_DEV_NAME"] = spec.name
    if node.simulated:
        environment["GPU_DEV_SIMULATED"] = "1"
    if mode.has_namespaces:
        environment["XDG_RUNTIME_DIR"] = runtime_dir(uid)
    else:
        environment["TMPDIR"] = view.tmp
    if gang is not None:
        environment |= _gang_environment(spec, share, gang)
    # A process cannot be given what holds a NUL.
    return {name: value for name, value in environment.items() if "\0" not in name + value}


def visible_devices(share: NodeShare, node: LocalNode, mode: IsolationMode) -> dict[str, str]:
    """The GPUs by the numbers under which CUDA will find them."""
    if node.simulated or not node.nvml:
        return {"CUDA_VISIBLE_DEVICES": _join_numbers(share.gpu_indices)}
    if mode.has_namespaces:
        # Only its own device files are there, and the driver counts what it can open from 0.
        return {"CUDA_VISIBLE_DEVICES": _join_numbers(range(len(share.gpu_indices))), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    # NVML counts in the order of the bus; CUDA does so only when told.
    numbers = [node.nvml[index] for index in share.gpu_indices]
    return {"CUDA_VISIBLE_DEVICES": _join_numbers(numbers), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def login_banner(spec: ServerSpec, node: LocalNode, view: InsidePaths) -> str:
    gpus = f"{spec.gpu_count} × {spec.gpu_type}" if spec.gpu_count else spec.gpu_type
    simulated = " (simulated)" if node.simulated else ""
    until = f", until {spec.expires_at:%Y-%m-%d %H:%M} UTC" if spec.expires_at else ""
    home = (
        f"your disk {spec.disk_name or 'default'!r}, kept for next time"
        if spec.disk_id
        else "scratch space that ends with the reservation"
    )
    return (
        f"gpu-dev reservation {short_id(spec.reservation_id)}: {gpus}{simulated} on {node.name}{until}\n"
        f"{view.home} is {home}.\n"
        f"{view.workspace} ends with the reservation.\n"
    )


def _gang_environment(spec: ServerSpec, share: NodeShare, gang: GangAddresses) -> dict[str, str]:
    ranks = range(len(spec.shares))
    return {
        "RANK": str(share.rank),
        "NODE_RANK": str(share.rank),
        "WORLD_SIZE": str(len(spec.shares)),
        "MASTER_ADDR": gang.address,
        "MASTER_PORT": str(gang.master_port),
        "GPU_DEV_NODE_COUNT": str(len(spec.shares)),
        "GPU_DEV_HOSTS": ",".join(member_hostname(spec, rank) for rank in ranks),
        "GPU_DEV_SSH_PORTS": ",".join(str(gang.ssh_ports[rank]) for rank in ranks),
    }


def _join_numbers(numbers: "tuple[int, ...] | range | list[int]") -> str:
    return ",".join(str(number) for number in numbers)
