"""Prepares a launch: folders, listening sockets, environment and the launch spec of each member."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpudev.adapters.key_pairs import ensure_host_key
from gpudev.adapters.local.machine.cgroups import CgroupLimiter, resource_limits
from gpudev.adapters.local.machine.isolation import UID_INSIDE, IsolationMode, first_user_uid, user_uid
from gpudev.adapters.local.machine.launch_spec import InsidePaths, LaunchSpec, inside_paths, runtime_dir
from gpudev.adapters.local.machine.nodes import LocalNode, LocalNodes
from gpudev.adapters.local.machine.nvml import CONTROL_DEVICES
from gpudev.adapters.local.network.own_networks import OwnNetwork, OwnNetworks
from gpudev.adapters.local.servers.ssh_listeners import SshListeners
from gpudev.adapters.local.servers.state_folder import (
    InvalidServerRecord,
    MemberFolder,
    ServerFolder,
    ServerRecord,
    StateFolder,
)
from gpudev.adapters.local.sshd.jupyter import jupyter_spec_to_text
from gpudev.domain.cluster import NodeShare
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.domain.ids import ReservationId, short_id
from gpudev.ports.cluster import ServerSpec

# Environment of sessions and login banner: pure functions.


@dataclass(frozen=True, slots=True)
class GangAddresses:
    """How the members of one dev server find each other."""

    address: str
    master_port: int
    ssh_ports: tuple[int, ...]


def member_hostname(spec: ServerSpec, rank: int) -> str:
    """People log in to rank 0, so it has the plain name."""
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
    # The environment of a process cannot contain a NUL.
    return {name: value for name, value in environment.items() if "\0" not in name + value}


def visible_devices(share: NodeShare, node: LocalNode, mode: IsolationMode) -> dict[str, str]:
    """Environment with the GPUs by CUDA's numbers."""
    if node.simulated or not node.nvml:
        return {"CUDA_VISIBLE_DEVICES": _join_numbers(share.gpu_indices)}
    if mode.has_namespaces:
        # Only its own device files exist inside, and the driver counts the ones it can open from 0.
        return {"CUDA_VISIBLE_DEVICES": _join_numbers(range(len(share.gpu_indices))), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    # NVML counts in bus order; CUDA does so only with CUDA_DEVICE_ORDER.
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


_LOOPBACK = "127.0.0.1"
_MASTER_PORTS = range(20_000, 30_000)
"""Below the kernel's ephemeral ports, so that none of those takes the port later."""


@dataclass(frozen=True, slots=True)
class PreparedServer:
    record: ServerRecord
    host_key: str
    """The public half."""
    listeners: tuple[socket.socket, ...]
    """By rank. Each is passed to its member and then closed here."""
    network: OwnNetwork | None
    """All members enter it. None: they share the host's."""

    def close(self) -> None:
        _close_all(self.listeners)
        if self.network is not None:
            self.network.close()


@dataclass(frozen=True, slots=True)
class Launcher:
    state: StateFolder
    nodes: LocalNodes
    mode: IsolationMode
    limiter: CgroupLimiter
    listeners: SshListeners
    networks: OwnNetworks | None = None
    """None: dev servers share the host's network."""
    closed_ports: tuple[int, ...] = ()
    has_user_namespaces: bool = False

    def check_spec(self, spec: ServerSpec, others: Iterable[ServerSpec]) -> None:
        """Raises ClusterError when this machine cannot run it, or not together with the others."""
        if sorted(share.rank for share in spec.shares) != list(range(len(spec.shares))) or not spec.shares:
            raise ClusterError("invalid shares (expected one for each of the ranks 0, 1, …)")
        held = {(share.node, gpu): other for other in others for share in other.shares for gpu in share.gpu_indices}
        for share in spec.shares:
            node = self.nodes.find_node(share.node)
            if node is None:
                raise ClusterError(f"no node named {share.node!r} on this machine")
            if node.gpus and (len(share.gpu_indices) != share.units or len(set(share.gpu_indices)) != share.units):
                raise ClusterError(f"invalid share on {share.node} (expected the numbers of its {share.units} GPUs)")
            for gpu in share.gpu_indices:
                if not 0 <= gpu < node.gpus:
                    raise ClusterError(f"node {share.node} has no GPU {gpu}")
                if holder := held.get((share.node, gpu)):
                    raise ClusterError(f"GPU {gpu} of node {share.node} is in use by {holder.pod_name}")

    def prepare_server(self, spec: ServerSpec) -> PreparedServer:
        """Blocks: call it in a thread. Home, host key and ports of an earlier launch are used again."""
        folder = self.state.server(spec.reservation_id)
        uid = self._uid(spec)
        folder.prepare(uid, self.folder_mode)
        home = self._ensure_home(spec, folder, uid)
        host_key = ensure_host_key(folder.host_key)
        earlier = _find_earlier_record(folder)
        with contextlib.ExitStack() as undo:
            listeners = self._listen(len(spec.shares), earlier.ports if earlier else ())
            undo.callback(_close_all, listeners)
            network = None if self.networks is None else self.networks.take()
            if self.networks is not None and network is not None:
                undo.callback(self.networks.remove, network.network_id)
                undo.callback(network.close)
            record = ServerRecord(
                spec=spec,
                ports=tuple(listener.getsockname()[1] for listener in listeners),
                master_port=_master_port(spec, earlier, network) if len(spec.shares) > 1 else None,
                host=self.listeners.host,
                network=None if network is None else network.network_id,
            )
            self.write_addons(folder, spec)
            for share in spec.shares:
                self._prepare_member(folder, record, share, home, network)
            folder.write_record(record)
            undo.pop_all()
        return PreparedServer(record, host_key, listeners, network)

    def write_addons(self, folder: ServerFolder, spec: ServerSpec) -> None:
        """Write what may change while it runs: who may log in, and Jupyter."""
        folder.write_keys(spec.ssh_public_keys)
        folder.write_jupyter(jupyter_spec_to_text(spec.jupyter), self._uid(spec))

    def _ensure_home(self, spec: ServerSpec, folder: ServerFolder, uid: int) -> Path:
        if spec.volume is not None:
            return self.state.open_volume(spec.volume.volume_id, uid)
        return self.state.ensure_disk(spec.disk_id, uid) if spec.disk_id else folder.ensure_scratch_home(uid)

    @property
    def folder_mode(self) -> int:
        """Users with their own uid but without their own root must pass through our folders, without reading them."""
        return 0o711 if self.mode is IsolationMode.UIDS else 0o700

    def remove_groups(self, reservation_id: ReservationId, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self.limiter.remove_groups(_group_name(reservation_id, rank))

    def _prepare_member(
        self,
        folder: ServerFolder,
        record: ServerRecord,
        share: NodeShare,
        home: Path,
        network: OwnNetwork | None,
    ) -> None:
        spec = record.spec
        uid = self._uid(spec)
        node = self._get_node(share)
        member = folder.member(share.rank)
        member.prepare(self.folder_mode)
        view = inside_paths(self.mode, str(home), str(folder.workspace), str(folder.run), member.path)
        if share.rank == 0:
            folder.write_banner(login_banner(spec, node, view))
        gang = None if record.master_port is None else GangAddresses(_LOOPBACK, record.master_port, record.ports)
        share_of_node = resource_limits(node, share.units)
        cgroups = self.limiter.ensure_groups(_group_name(spec.reservation_id, share.rank), share_of_node)
        launch = LaunchSpec(
            mode=self.mode,
            uid=uid,
            hostname=member_hostname(spec, share.rank),
            hostnames=tuple(member_hostname(spec, other.rank) for other in spec.shares),
            # Without a gang, what it binds to its own host name stays on the loopback interface.
            address=_LOOPBACK if gang is None or network is not None else _numeric_address(self.listeners.host),
            home=str(home),
            workspace=str(folder.workspace),
            run=str(folder.run),
            host_key=str(folder.host_key),
            devices=_device_files(node, share),
            hidden=_hidden_paths(self.state.path),
            # Nothing of the control plane is in its own network.
            closed_ports=self.closed_ports if network is None else (),
            has_own_network=network is not None,
            resolv_conf=None if network is None else network.resolv_conf,
            has_user_namespaces=self.has_user_namespaces,
            cgroups=tuple(map(str, cgroups)),
            memory=share_of_node.memory,
            max_processes=None if self.limiter.limits("pids") or not self.mode.has_own_uid else share_of_node.processes,
            environment=server_environment(spec, share, node, mode=self.mode, uid=uid, view=view, gang=gang),
            # Members share the home, so once is enough.
            dotfiles=spec.dotfiles if share.rank == 0 else None,
            startup_script=spec.startup_script if share.rank == 0 else None,
        )
        member.write_launch(launch)

    def _get_node(self, share: NodeShare) -> LocalNode:
        node = self.nodes.find_node(share.node)
        if node is None:
            raise ClusterError(f"no node named {share.node!r} on this machine")
        return node

    def _uid(self, spec: ServerSpec) -> int:
        if self.mode.has_own_uid:
            return user_uid(spec.user_id, first_user_uid())
        return UID_INSIDE if self.mode is IsolationMode.USER else os.getuid()

    def _listen(self, count: int, earlier_ports: tuple[int, ...]) -> tuple[socket.socket, ...]:
        """A listening socket per member: on its earlier port if that is free, else on any."""
        listeners: list[socket.socket] = []
        try:
            for rank in range(count):
                listeners.append(self.listeners.take(earlier_ports[rank] if rank < len(earlier_ports) else None))
        except BaseException:
            _close_all(listeners)
            raise
        return tuple(listeners)


def ensure_gpu_devices() -> None:
    """The driver creates some device files only at the first use of a GPU, which needs rights no dev server has."""
    program = shutil.which("nvidia-modprobe")
    if program is not None and not Path("/dev/nvidia-uvm").exists():
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run([program, "-u", "-c=0"], check=False, timeout=30, stdin=subprocess.DEVNULL)


def _group_name(reservation_id: ReservationId, rank: int) -> str:
    return f"{reservation_id}-{rank}"


def _close_all(listeners: Iterable[socket.socket]) -> None:
    for listener in listeners:
        listener.close()


def _numeric_address(host: str) -> str:
    """The address for /etc/hosts. A host that cannot be resolved fails later, when its socket is created."""
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return _LOOPBACK


def _master_port(spec: ServerSpec, earlier: ServerRecord | None, network: OwnNetwork | None) -> int:
    """A port that others are unlikely to take, as nothing reserves it for the gang. The same after a restart."""
    if earlier is not None and earlier.master_port is not None:
        return earlier.master_port
    first = spec.reservation_id.int % len(_MASTER_PORTS)
    if network is not None:
        return _MASTER_PORTS[first]  # nobody else is in there
    for step in range(len(_MASTER_PORTS)):
        port = _MASTER_PORTS[(first + step) % len(_MASTER_PORTS)]
        with socket.socket() as trial:
            try:
                trial.bind((_LOOPBACK, port))
                return port
            except OSError:
                continue
    raise Unavailable("no port is free for the gang (MASTER_PORT)")


def _find_earlier_record(folder: ServerFolder) -> ServerRecord | None:
    try:
        return folder.find_record()
    except InvalidServerRecord:
        return None  # it is about to be overwritten


def _device_files(node: LocalNode, share: NodeShare) -> tuple[str, ...]:
    own = [path for index in share.gpu_indices if index < len(node.devices) for path in node.devices[index]]
    return (*own, *(path for path in CONTROL_DEVICES if Path(path).exists())) if own else ()


def _hidden_paths(state_dir: Path) -> tuple[str, ...]:
    """The state folder, and the home of the user who started us if that user owns it and is not root."""
    try:
        home = Path(pwd.getpwuid(os.getuid()).pw_dir)
        owns_home = home.stat().st_uid == os.getuid() != 0
    except (KeyError, OSError):  # a uid without a name, or a missing home
        return (str(state_dir),)
    return (str(state_dir), str(home)) if owns_home else (str(state_dir),)


def member_folders(folder: ServerFolder, record: ServerRecord | None) -> list[MemberFolder]:
    """The folders that the record names. Without a record, those that exist."""
    if record is None:
        return folder.members()
    return [folder.member(share.rank) for share in sorted(record.spec.shares, key=lambda share: share.rank)]
