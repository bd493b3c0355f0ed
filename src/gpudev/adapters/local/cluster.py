"""This machine as the cluster: dev servers are processes, and the state folder records them.

It launches, tears down and observes; the planner has decided before who gets what. Nothing here waits for a dev server
to become ready. Everything that blocks runs in threads. One lock per reservation serializes its launch and teardown.
Without Linux, or where Linux forbids namespaces, dev servers are ordinary processes in ordinary folders. That should
work on macOS too, but is not tested there.
"""

import asyncio
import contextlib
import errno
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import structlog

from gpudev.adapters.change_signal import ChangeSignal
from gpudev.adapters.key_pairs import parse_key_pair
from gpudev.adapters.local.machine.cgroups import CgroupLimiter, find_cgroup_limiter
from gpudev.adapters.local.machine.gpu_use import ManagedUse, UnmanagedUseWatch
from gpudev.adapters.local.machine.isolation import IsolationMode, IsolationResult, describe_isolation
from gpudev.adapters.local.machine.nodes import LocalNodes
from gpudev.adapters.local.machine.processes import ProcessIdentity
from gpudev.adapters.local.network.own_networks import OwnNetwork
from gpudev.adapters.local.network.plan import NetworkSetting
from gpudev.adapters.local.network.rules import LISTENER_MARK
from gpudev.adapters.local.servers.launcher import Launcher, PreparedServer, ensure_gpu_devices, member_folders
from gpudev.adapters.local.servers.member_process import Member, kill_processes_by_variable, stop_process
from gpudev.adapters.local.servers.observation import KnownServer, node_state
from gpudev.adapters.local.servers.server_networks import ServerNetworks
from gpudev.adapters.local.servers.ssh_listeners import SshListeners
from gpudev.adapters.local.servers.state_folder import (
    InvalidServerRecord,
    MemberFolder,
    ServerRecord,
    StateFolder,
)
from gpudev.adapters.local.servers.zygote_client import ZygoteClient, ZygoteLost
from gpudev.adapters.local.sshd.jupyter import parse_jupyter_report
from gpudev.adapters.local.sshd.terminal_messages import TerminalMessage, append_message
from gpudev.adapters.local.volumes.tree_walk import remove_folder
from gpudev.domain.disks.contents import Contents
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.domain.ids import ReservationId
from gpudev.domain.sessions.addons import JupyterSpec, JupyterStatus
from gpudev.ports.clock import Clock
from gpudev.ports.cluster import ClusterState, ServerPhase, ServerSpec

log = structlog.get_logger(__name__)
_T = TypeVar("_T")
_STOP_TIMEOUT_S = 5.0
_SPARE_LISTENERS = 4
_SHORTAGES = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
"""Another time there may be enough: it is no failure of the dev server."""
_MESSAGE_VALID_FOR = timedelta(minutes=15)
_RESERVATION_VARIABLE = "GPU_DEV_RESERVATION_ID"
_EARLIER_RUN_NOT_ENDED = "processes of the dev server's earlier run have not ended yet"


class LocalCluster:
    def __init__(
        self,
        state_dir: Path,
        nodes: LocalNodes,
        clock: Clock,
        ssh_host: str = "127.0.0.1",
        *,
        mode: IsolationMode | None = None,
        network: NetworkSetting | None = NetworkSetting.AUTO,
        network_range: str = "",
        closed_ports: tuple[int, ...] = (),
        has_user_namespaces: bool = False,
    ) -> None:
        """`mode` None: the best that works here. `network` None: no dev server is started. `network_range` empty: any
        private range that is free.
        `closed_ports`: the control plane's own ports on this machine; the dev servers' SSH servers forward nothing to
        them where the network is shared. `has_user_namespaces`: whether programs there may create some."""
        self._state = StateFolder(Path(state_dir).expanduser().absolute())
        self._nodes = nodes
        self._clock = clock
        self._ssh_host = ssh_host
        self._closed_ports = closed_ports
        self._has_user_namespaces = has_user_namespaces
        self._zygote = ZygoteClient(self._state.path, mode)
        # Other modes have no root who could set up networks, or no namespaces.
        may_be_own = mode in (None, IsolationMode.ROOT)
        network = network if may_be_own or network is None else NetworkSetting.SHARED
        self._networks = ServerNetworks(self._state.path, network, network_range)
        self._changes = ChangeSignal()
        self._unmanaged_use = UnmanagedUseWatch(nodes, self._managed_use, self._changes.notify)
        self._servers: dict[ReservationId, KnownServer] = {}
        self._locks: WeakValueDictionary[ReservationId, asyncio.Lock] = WeakValueDictionary()
        self._launcher: Launcher | None = None
        self._isolation_result: IsolationResult | None = None
        self._background_tasks: set[asyncio.Task[Any]] = set()

    @property
    def isolation(self) -> str:
        if self._isolation_result is None or self._launcher is None:
            return "The local cluster has not been started."
        limits = self._launcher.limiter.describe(self._isolation_result.mode)
        return describe_isolation(self._isolation_result, limits, self._networks.description)

    async def start(self) -> None:
        try:
            await self._start()
        except OSError as error:
            raise Unavailable(f"cannot use the state folder {self._state.path}: {error.strerror}") from error

    async def close(self) -> None:
        self._unmanaged_use.close()
        if self._background_tasks:
            await asyncio.wait(self._background_tasks, timeout=_STOP_TIMEOUT_S)
        for server in self._servers.values():
            for member in server.members:
                member.stop_watching()
        await self._zygote.close()
        if self._launcher is not None:
            self._launcher.listeners.close()
        await self._networks.close()
        self._changes.close()

    async def observe(self) -> ClusterState:
        self._get_launcher()
        try:
            await self._refresh_servers()
        except OSError as error:
            raise Unavailable(f"cannot read the state folder: {error}") from error
        self._unmanaged_use.refresh()
        nodes = tuple(node_state(node, self._unmanaged_use.latest, self._ssh_host) for node in self._nodes.nodes)
        servers = {rid: server.state(self._ssh_host) for rid, server in self._servers.items()}
        return ClusterState(self._clock.now(), nodes, servers)

    def changes(self) -> AsyncIterator[None]:
        return self._changes.subscribe()

    async def ensure_server(self, spec: ServerSpec) -> None:
        launcher = self._get_launcher()
        await asyncio.shield(self._start_task(self._ensure_server(launcher, spec)))

    async def ensure_gone(self, reservation_id: ReservationId, *, keep_files: bool = False) -> bool:
        launcher = self._get_launcher()
        return await asyncio.shield(self._start_task(self._ensure_gone(launcher, reservation_id, keep_files)))

    async def stop_servers(self) -> int:
        """Stop every dev server's processes and keep their folders, as a shutdown of the machine does.

        Returns how many ran. The next start of the control plane finds them dead and restartable.
        """
        self._get_launcher()
        stopped = 0
        for server in list(self._servers.values()):
            async with self._lock(server.reservation_id):
                ran = server.state(self._ssh_host).phase is not ServerPhase.DEAD
                if not await self._stop_server(server):
                    raise ClusterError(f"cannot stop dev server {server.reservation_id}")
                stopped += ran
        return stopped

    async def home_contents(self, reservation_id: ReservationId) -> Contents | None:
        """None: disks are folders here, and the snapshots of them record their contents."""
        return None

    async def apply_addons(
        self, reservation_id: ReservationId, ssh_public_keys: tuple[str, ...], jupyter: JupyterSpec | None
    ) -> JupyterStatus | None:
        launcher = self._get_launcher()
        async with self._lock(reservation_id):
            server = self._servers.get(reservation_id)
            if server is None or server.state(self._ssh_host).phase is not ServerPhase.READY:
                raise Unavailable("the dev server is not running")
            try:
                await self._update_addons(launcher, server, ssh_public_keys, jupyter)
                report = await asyncio.to_thread(server.folder.member(0).read_jupyter_report)
            except OSError as error:
                raise Unavailable(f"cannot use the dev server's folder: {error.strerror}") from error
            return None if jupyter is None else parse_jupyter_report(report, jupyter)

    async def send_message(self, reservation_id: ReservationId, message: str) -> None:
        """Show a message in all terminals, and to those who log in within the next 15 minutes.

        Nothing happens when the dev server is gone.
        """
        server = self._servers.get(reservation_id)
        if server is None:
            return
        text = "".join(letter for letter in message if letter.isprintable() or letter == "\n")
        terminal_message = TerminalMessage(text, valid_until=self._clock.now() + _MESSAGE_VALID_FOR)
        with contextlib.suppress(FileNotFoundError):
            await asyncio.to_thread(append_message, str(server.folder.messages), terminal_message)

    async def _start(self) -> None:
        await asyncio.to_thread(self._state.path.mkdir, 0o700, True, True)
        opening = asyncio.create_task(self._networks.open())  # both take long
        try:
            isolation = await self._zygote.start()
        finally:
            await opening
        if isolation.mode is not IsolationMode.ROOT:
            await self._networks.abandon()
        self._isolation_result = isolation
        limiter = await asyncio.to_thread(find_cgroup_limiter)
        self._launcher = self._make_launcher(isolation, limiter)
        await asyncio.to_thread(self._launcher.listeners.fill)
        await asyncio.to_thread(self._state.prepare, self._launcher.folder_mode)
        if self._nodes.has_real_gpus:
            await asyncio.to_thread(ensure_gpu_devices)
        await self._refresh_servers()
        records = [server.record for server in self._servers.values() if server.record is not None]
        await self._networks.start(tuple(record.network.number for record in records if record.network))
        if refreshing := self._unmanaged_use.refresh():
            await asyncio.wait({refreshing}, timeout=_STOP_TIMEOUT_S)
        self._run_in_background(self._empty_trash)

    def _make_launcher(self, isolation: IsolationResult, limiter: CgroupLimiter) -> Launcher:
        networks = self._networks.own
        ready = sum(node.gpus for node in self._nodes.nodes) + _SPARE_LISTENERS
        listeners = SshListeners(self._ssh_host, ready, None if networks is None else LISTENER_MARK)
        return Launcher(
            self._state,
            self._nodes,
            isolation.mode,
            limiter,
            listeners,
            networks,
            closed_ports=self._closed_ports,
            has_user_namespaces=self._has_user_namespaces,
        )

    def _get_launcher(self) -> Launcher:
        if self._launcher is None:
            raise Unavailable("the local cluster has not been started")
        return self._launcher

    def _lock(self, reservation_id: ReservationId) -> asyncio.Lock:
        return self._locks.setdefault(reservation_id, asyncio.Lock())

    def _managed_use(self) -> ManagedUse:
        servers = self._servers.values()
        members = [member for server in servers for member in server.members if not member.state.ended]
        specs = [server.record.spec for server in servers if server.record]
        return ManagedUse(
            pids=frozenset(member.process.pid for member in members if member.process),
            gpus=frozenset((share.node, gpu) for spec in specs for share in spec.shares for gpu in share.gpu_indices),
        )

    def _other_specs(self, spec: ServerSpec) -> list[ServerSpec]:
        """The specs of all other dev servers that run or are being launched."""
        return [
            server.record.spec
            for rid, server in self._servers.items()
            if rid != spec.reservation_id
            and server.record
            and server.state(self._ssh_host).phase is not ServerPhase.DEAD
        ]

    # Launch

    async def _ensure_server(self, launcher: Launcher, spec: ServerSpec) -> None:
        async with self._lock(spec.reservation_id):
            server = self._servers.get(spec.reservation_id)
            if server is not None and server.state(self._ssh_host).phase is not ServerPhase.DEAD:
                await self._update_addons(launcher, server, spec.ssh_public_keys, spec.jupyter)
                return
            launcher.check_spec(spec, self._other_specs(spec))
            if server is not None:
                # An observation during the cleanup shows the earlier reason, and not a new death.
                server.failure = server.state(self._ssh_host).reason
                server.is_restartable = True
                if not await self._stop_server(server):
                    raise Unavailable(_EARLIER_RUN_NOT_ENDED)
            await self._launch(launcher, spec)

    async def _launch(self, launcher: Launcher, spec: ServerSpec) -> None:
        server = KnownServer(spec.reservation_id, self._state.server(spec.reservation_id), ServerRecord(spec, (), None))
        server.preparation_step = "preparing its folders"
        self._servers[spec.reservation_id] = server
        self._changes.notify()
        try:
            prepared = await asyncio.to_thread(launcher.prepare_server, spec)
            try:
                server.record, server.host_key = prepared.record, prepared.host_key
                await self._spawn_all(server, prepared)
            finally:
                prepared.close()
        except (ClusterError, Unavailable, OSError) as error:
            # All members or none. The caller decides how often to try.
            server.failure, server.is_restartable = f"launch failed: {error}", True
            await self._stop_server(server)
            self._changes.notify()
            if isinstance(error, OSError):
                raise (Unavailable if error.errno in _SHORTAGES else ClusterError)(server.failure) from error
            raise
        server.preparation_step = None
        self._changes.notify()

    async def _spawn_all(self, server: KnownServer, prepared: PreparedServer) -> None:
        for rank, listener in enumerate(prepared.listeners):
            member = Member(server.folder.member(rank), self._changes.notify, self._zygote.exit_status)
            reading, writing = os.pipe()
            try:
                process = await self._spawn(member.folder, listener.fileno(), writing, prepared.network)
            except BaseException:
                os.close(reading)
                raise
            finally:
                os.close(writing)
            server.members.append(member)
            member.watch_started(process, reading)

    async def _spawn(
        self, folder: MemberFolder, listener: int, pipe: int, network: OwnNetwork | None
    ) -> ProcessIdentity:
        """Fork the first process of a member. Tries a second time if the zygote died before it could."""
        for _ in range(2):
            lock = await asyncio.to_thread(folder.take_lock)
            if lock is None:
                raise Unavailable(_EARLIER_RUN_NOT_ENDED)
            try:
                namespace = () if network is None else (network.namespace,)
                process = await self._zygote.spawn(folder.path, (listener, pipe, lock, *namespace))
                lost = False
            except ZygoteLost:
                process, lost = None, True
            finally:
                os.close(lock)
            process = process or await self._wait_for_process(folder)
            if process is not None:
                return process
            if not lost:
                raise ClusterError("the dev server's first process ended immediately")
        raise Unavailable("the zygote died repeatedly")

    async def _wait_for_process(self, folder: MemberFolder) -> ProcessIdentity | None:
        """The first process, by its own report. None: it ended without a report."""
        while await asyncio.to_thread(folder.is_locked):
            if found := await asyncio.to_thread(folder.find_process):
                return found
            await asyncio.sleep(0.005)
        return await asyncio.to_thread(folder.find_process)

    async def _update_addons(
        self, launcher: Launcher, server: KnownServer, keys: tuple[str, ...], jupyter: JupyterSpec | None
    ) -> None:
        """Change who may log in, and Jupyter. Nothing else can change while the dev server runs."""
        if server.record is None:
            return
        desired = replace(server.record.spec, ssh_public_keys=keys, jupyter=jupyter)
        if desired == server.record.spec:
            return
        # The dev server's files before the record: what is recorded has always been written for the dev server.
        await asyncio.to_thread(launcher.write_addons, server.folder, desired)
        server.record = replace(server.record, spec=desired)
        await asyncio.to_thread(server.folder.write_record, server.record)

    # Restoring from the state folder

    async def _refresh_servers(self) -> None:
        """Restore dev servers that are new in the state folder, and forget those that are gone from it."""
        recorded = await asyncio.to_thread(self._state.list_servers)
        for reservation_id in recorded - self._servers.keys():
            lock = self._lock(reservation_id)
            async with lock:
                if reservation_id not in self._servers:
                    await self._restore_server(reservation_id)
        for reservation_id in self._servers.keys() - recorded:
            server = self._servers[reservation_id]
            if server.preparation_step is None and server.state(self._ssh_host).phase is ServerPhase.DEAD:
                self._servers.pop(reservation_id)
                self._remove_network(server)

    async def _restore_server(self, reservation_id: ReservationId) -> None:
        folder = self._state.server(reservation_id)
        if not await asyncio.to_thread(folder.exists):
            return
        server = KnownServer(reservation_id, folder)
        try:
            server.record = await asyncio.to_thread(folder.find_record)
            if server.record is None:
                server.failure, server.is_restartable = "the control plane ended during its launch", True
            else:
                server.host_key = parse_key_pair(await asyncio.to_thread(folder.host_key.read_text, "ascii")).public
        except (InvalidServerRecord, OSError, ValueError) as error:
            server.failure = f"cannot read its record: {error}"
        for member_folder in member_folders(folder, server.record):
            member = Member(member_folder, self._changes.notify, self._zygote.exit_status)
            server.members.append(member)
            try:
                await member.resume_watching()
            except Exception as error:
                # One user's files must never keep the other users' dev servers from being restored.
                log.exception("member.unreadable", reservation_id=str(reservation_id), rank=member_folder.rank)
                server.failure, server.is_restartable = f"cannot read its state: {type(error).__name__}", True
        self._servers[reservation_id] = server
        self._changes.notify()

    # Teardown

    def _empty_trash(self) -> None:
        for path in self._state.trash.iterdir():
            with contextlib.suppress(OSError):  # it is tried again at the next start
                remove_folder(path)

    async def _ensure_gone(self, launcher: Launcher, reservation_id: ReservationId, keep_files: bool) -> bool:
        async with self._lock(reservation_id):
            server = self._servers.get(reservation_id) or KnownServer(
                reservation_id, self._state.server(reservation_id)
            )
            if not await self._stop_server(server):
                return False
            ranks = [folder.rank for folder in await asyncio.to_thread(server.folder.members)]
            await asyncio.to_thread(launcher.remove_groups, reservation_id, ranks)
            trash = await asyncio.to_thread(
                self._state.move_to_lost if keep_files else self._state.move_to_trash, server.folder
            )
            self._servers.pop(reservation_id, None)
            if trash is not None and not keep_files:
                self._run_in_background(lambda: remove_folder(trash))
            self._changes.notify()
            return True

    async def _stop_server(self, server: KnownServer) -> bool:
        """Kill all its processes; True when none is left. Its folders remain."""
        server.failure = server.failure or "it is being torn down"
        for member in server.members:
            member.stop_watching()
        folders = await asyncio.to_thread(server.folder.members)
        ended = await asyncio.gather(*(self._stop_member(folder) for folder in folders))
        if all(ended):
            self._remove_network(server)
        modes = [await asyncio.to_thread(folder.find_isolation_mode) for folder in folders]
        if any(mode is not None and not mode.has_namespaces for mode in modes):
            is_clean = await asyncio.to_thread(
                kill_processes_by_variable, _RESERVATION_VARIABLE, str(server.reservation_id)
            )
            return is_clean and all(ended)
        return all(ended)

    async def _stop_member(self, folder: MemberFolder) -> bool:
        """A process that is just starting may not have reported its pid yet, but it holds the lock."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                while True:
                    process = await asyncio.to_thread(folder.find_process)
                    if process is not None and not await self._stop_first_process(process, folder):
                        return False
                    if not await asyncio.to_thread(folder.is_locked):
                        return True
                    await asyncio.sleep(0.01)
        return False

    async def _stop_first_process(self, process: ProcessIdentity, folder: MemberFolder) -> bool:
        mode = await asyncio.to_thread(folder.find_isolation_mode)
        if mode is not None and not mode.has_namespaces:
            # On SIGTERM it stops its orphans; killed, it would leave them behind.
            await stop_process(process, signal.SIGTERM, _STOP_TIMEOUT_S / 2)
        return await stop_process(process, signal.SIGKILL, _STOP_TIMEOUT_S)

    def _remove_network(self, server: KnownServer) -> None:
        if server.record is not None and (network := server.record.network) is not None:
            server.record = replace(server.record, network=None)
            self._run_in_background(lambda: self._networks.remove(network))

    def _run_in_background(self, work: Callable[[], None]) -> None:
        self._start_task(asyncio.to_thread(work))

    def _start_task(self, work: Coroutine[None, None, _T]) -> "asyncio.Task[_T]":
        """Run `work` in a task of its own, which continues when the caller stops waiting."""
        task = asyncio.create_task(work)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)
        return task
