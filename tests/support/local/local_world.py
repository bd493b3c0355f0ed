"""A local cluster on a folder of its own, real dev servers on it, and the system's own ssh client."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from contracts.cluster_contract import ClusterWorld
from gpudev.adapters.key_pairs import ensure_host_key
from gpudev.adapters.local.cluster import LocalCluster
from gpudev.adapters.local.machine import linux
from gpudev.adapters.local.machine.isolation import IsolationMode, first_user_uid
from gpudev.adapters.local.machine.nodes import LocalNode, LocalNodes
from gpudev.adapters.local.network.own_networks import remove_own_networks
from gpudev.adapters.local.volumes.tree_walk import remove_folder
from gpudev.domain.cluster import NodeShare
from gpudev.domain.ids import ReservationId, UserId, new_reservation_id, pod_name
from gpudev.domain.reservations.reservation import SshEndpoint
from gpudev.ports.clock import Clock
from gpudev.ports.cluster import ServerSpec, ServerState
from support.local.world_folders import PLACES, Place
from support.process_table import command_lines

GB = 1024**3
IS_ROOT = os.geteuid() == 0
MODES = (
    ((IsolationMode.ROOT, IsolationMode.UIDS) if IS_ROOT else (IsolationMode.USER, IsolationMode.PLAIN))
    if linux.IS_LINUX
    else (IsolationMode.PLAIN,)
)
"""Every way of keeping dev servers apart that whoever runs the tests can try."""
ONLY_LINUX = pytest.mark.skipif(not linux.IS_LINUX, reason="only Linux can do this")
NODES = LocalNodes(
    tuple(LocalNode(name, "h100", 8, simulated=True, cpus=4, memory=8 * GB) for name in ("a", "b", "c")),
    source="made up for tests",
)
ALICE, BOB = UserId(21), UserId(22)


class LocalWorld(ClusterWorld):
    """Use with `async with`: at its end nothing of it is left."""

    cluster: LocalCluster

    def __init__(
        self, clock: Clock, mode: IsolationMode | None, nodes: LocalNodes = NODES, folder: Path | None = None
    ) -> None:
        self.clock = clock
        self.mode = mode
        self.nodes = nodes
        self._place = PLACES.take(mode) if folder is None else None
        self.folder: Path = folder or cast(Place, self._place).folder
        self.folder.chmod(0o755)
        self.state_dir = self.folder / "state"
        self.state_dir.mkdir(mode=0o711)
        self.key = self.folder / "key"
        self.public_key = ensure_host_key(self.key)
        self._free = {node.name: list(range(node.gpus)) for node in nodes.nodes}

    async def __aenter__(self) -> "LocalWorld":
        await self.open(self._place)
        return self

    async def __aexit__(self, *_: object) -> None:
        for reservation_id in (await self.cluster.observe()).servers:
            await self.gone(reservation_id)
        if self._place is not None:
            self._place.take_back(self.cluster)
        await self.cluster.close()
        await self._leave()

    async def _leave(self) -> None:
        place = self._place
        left = [process for process in processes_below(self.state_dir) if not place or process.pid != place.warm_pid]
        try:
            assert not left, "processes outlived their dev servers"
            await asyncio.to_thread(remove_folder, self.folder)
            if place is None:
                await asyncio.to_thread(remove_own_networks, self.state_dir)
        except BaseException:
            if place is not None:
                place.close()
            raise
        if place is not None:
            PLACES.give_back(self.mode, place)

    def make_cluster(self) -> LocalCluster:
        return LocalCluster(self.state_dir, self.nodes, self.clock, mode=self.mode)

    async def open(self, place: Place | None = None) -> LocalCluster:
        self.cluster = self.make_cluster()
        if place is not None:
            place.lend(self.cluster)
        await self.cluster.start()
        return self.cluster

    def spec(self, *, nodes: int = 1, **changes: Any) -> ServerSpec:
        """One GPU of the last node; or, with `nodes`, one of each of the first."""
        rid = new_reservation_id()
        chosen = [node.name for node in self.nodes.nodes[:nodes]] if nodes > 1 else [self.nodes.nodes[-1].name]
        shares = tuple(NodeShare(rank, name, 1, (self._free[name].pop(0),)) for rank, name in enumerate(chosen))
        spec = ServerSpec(
            reservation_id=rid,
            pod_name=pod_name(rid),
            user_id=ALICE,
            username="alice",
            gpu_type=self.nodes.nodes[0].gpu_type,
            gpu_count=nodes,
            shares=shares,
            ssh_public_keys=(self.public_key,),
            disk_id=None,
            disk_name=None,
        )
        return replace(spec, **changes)

    def first_process(self, reservation_id: ReservationId, rank: int = 0) -> psutil.Process:
        found = self.cluster._state.server(reservation_id).member(rank).find_process()
        assert found is not None
        return psutil.Process(found.pid)

    async def kill(self, reservation_id: ReservationId) -> None:
        self.first_process(reservation_id).send_signal(signal.SIGKILL)

    @contextlib.asynccontextmanager
    async def nobody_watching(self) -> AsyncIterator[None]:
        await self.cluster.close()
        yield
        await self.open()

    async def ssh(
        self, seen: ServerState | SshEndpoint, command: str, stdin: bytes = b"", timeout: float = 60, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(self.ssh_now, seen, command, stdin, timeout, **options)

    def ssh_command(self, seen: ServerState | SshEndpoint, *options: str) -> list[str]:
        connection = seen if isinstance(seen, SshEndpoint) else seen.connection
        assert connection is not None
        known = self.folder / f"known.{connection.port}"
        known.write_text(f"[{connection.host}]:{connection.port} {connection.host_key}\n")
        return [
            *("ssh", "-F", "none", "-i", str(self.key), "-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none"),
            *("-o", f"UserKnownHostsFile={known}", "-o", "StrictHostKeyChecking=yes", "-o", "BatchMode=yes"),
            *("-p", str(connection.port), *options, f"{connection.user}@{connection.host}"),
        ]

    def ssh_now(
        self, seen: ServerState | SshEndpoint, command: str, stdin: bytes = b"", timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*self.ssh_command(seen), command], input=stdin, capture_output=True, timeout=timeout, check=False
        )
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    def open_session(self, seen: ServerState, command: str, *options: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [*self.ssh_command(seen, *options), command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )

    async def out(self, seen: ServerState, command: str, stdin: bytes = b"") -> str:
        """What a command that works says."""
        done = await self.ssh(seen, command, stdin)
        assert done.returncode == 0, done
        return done.stdout.strip()


def uid_of(user_id: int) -> int:
    return first_user_uid() + user_id if IS_ROOT else os.getuid()


def processes_below(state_dir: Path) -> list[psutil.Process]:
    """Processes forked from this folder's warm process, and the warm process itself."""
    return tagged(str(state_dir))


def tagged(tag: str) -> list[psutil.Process]:
    """Live processes with this in their command line, but for the one that asks."""
    found = []
    for pid, words in command_lines():
        if tag in words.replace("\0", " ") and pid != os.getpid():
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(pid))
    return found
