"""This machine as the cluster: dev servers are processes here, and what is known of them lies in the state folder.

It carries out and reports; who gets what was decided before. Nothing here waits for a dev server to become ready.
Everything that blocks runs in threads; one lock per reservation keeps its start and its end apart.
Without Linux (or where Linux forbids it) dev servers are ordinary processes in ordinary folders. That way is written
for macOS too, but not tested there.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from gpudev.adapters.change_signal import Changes
from gpudev.adapters.local.hostkeys import public_line
from gpudev.adapters.local.jupyter_papers import seen_in
from gpudev.adapters.local.known_servers import KnownServer
from gpudev.adapters.local.machine.cgroups import find_limiter
from gpudev.adapters.local.machine.gpu_use import ForeignWatch, OwnUse
from gpudev.adapters.local.machine.isolation import Finding, Mode, describe
from gpudev.adapters.local.machine.nodes import LocalNodes
from gpudev.adapters.local.machine.processes import ProcessIdentity
from gpudev.adapters.local.records import BadRecord, Record
from gpudev.adapters.local.servers.launcher import Launcher, Prepared, ensure_gpu_devices, member_folders
from gpudev.adapters.local.servers.member_process import Member, end_marked, end_process
from gpudev.adapters.local.servers.observation import node_seen
from gpudev.adapters.local.servers.state_folder import MemberFolder, StateFolder, remove_tree
from gpudev.adapters.local.servers.zygote_client import WarmProcess, WarmProcessLost
from gpudev.adapters.local.sshd.terminal_messages import Message, append_message
from gpudev.domain.disks.contents import Contents
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.domain.ids import ReservationId
from gpudev.domain.sessions.addons import JupyterSeen, JupyterWish
from gpudev.ports.clock import Clock
from gpudev.ports.cluster import ClusterSeen, Phase, ServerSpec

_T = TypeVar("_T")
_END_WITHIN_S = 5.0
_MESSAGE_GREETS_FOR = timedelta(minutes=15)
_MARK = "GPU_DEV_RESERVATION_ID"


class LocalCluster:
    def __init__(
        self,
        state_dir: Path,
        nodes: LocalNodes,
        clock: Clock,
        ssh_host: str = "127.0.0.1",
        *,
        mode: Mode | None = None,
        closed_ports: tuple[int, ...] = (),
    ) -> None:
        """`mode` None: the best that works here. `closed_ports`: of this machine, the control plane's own; dev servers'
        SSH servers forward nothing there."""
        self._state = StateFolder(Path(state_dir).expanduser().absolute())
        self._nodes = nodes
        self._clock = clock
        self._ssh_host = ssh_host
        self._closed_ports = closed_ports
        self._warm = WarmProcess(self._state.path, mode)
        self._changes = Changes()
        self._foreign = ForeignWatch(nodes, self._own_use, self._changes.tell)
        self._servers: dict[ReservationId, KnownServer] = {}
        self._locks: WeakValueDictionary[ReservationId, asyncio.Lock] = WeakValueDictionary()
        self._launcher: Launcher | None = None
        self._finding: Finding | None = None
        self._under_way: set[asyncio.Task[Any]] = set()

    @property
    def isolation(self) -> str:
        if self._finding is None or self._launcher is None:
            return "The local cluster has not been started."
        return describe(self._finding, self._launcher.limiter.in_words(self._finding.mode))

    @property
    def mode(self) -> Mode | None:
        return None if self._finding is None else self._finding.mode

    async def start(self) -> None:
        try:
            await self._start()
        except OSError as error:
            raise Unavailable(f"the state folder {self._state.path} cannot be used: {error.strerror}") from error

    async def close(self) -> None:
        self._foreign.close()
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=_END_WITHIN_S)
        for server in self._servers.values():
            for member in server.members:
                member.stop_watching()
        await self._warm.close()
        self._changes.close()

    async def look(self) -> ClusterSeen:
        self._started()
        try:
            await self._find_servers()
        except OSError as error:
            raise Unavailable(f"the state folder cannot be read: {error}") from error
        self._foreign.refresh()
        nodes = tuple(node_seen(node, self._foreign.seen, self._ssh_host) for node in self._nodes.nodes)
        servers = {rid: server.seen(self._ssh_host) for rid, server in self._servers.items()}
        return ClusterSeen(self._clock.now(), nodes, servers)

    def changes(self) -> AsyncIterator[None]:
        return self._changes.subscribe()

    async def ensure_server(self, spec: ServerSpec) -> None:
        launcher = self._started()
        await asyncio.shield(self._begin(self._ensure_server(launcher, spec)))

    async def ensure_gone(self, reservation_id: ReservationId, *, keep_files: bool = False) -> bool:
        launcher = self._started()
        return await asyncio.shield(self._begin(self._ensure_gone(launcher, reservation_id, keep_files)))

    async def stop_servers(self) -> int:
        """End every dev server's processes and keep their folders, as a shutdown of the machine does. Answers how
        many ran. Whoever starts next finds them lost unwatched and may start them again."""
        self._started()
        stopped = 0
        for server in list(self._servers.values()):
            async with self._lock(server.reservation_id):
                ran = server.seen(self._ssh_host).phase is not Phase.DEAD
                if not await self._end(server):
                    raise ClusterError(f"dev server {server.reservation_id} does not end")
                stopped += ran
        return stopped

    async def home_contents(self, reservation_id: ReservationId) -> Contents | None:
        """Disks are folders here: whoever takes their snapshots knows what is in them."""
        return None

    async def adjust(
        self, reservation_id: ReservationId, ssh_public_keys: tuple[str, ...], jupyter: JupyterWish | None
    ) -> JupyterSeen | None:
        launcher = self._started()
        async with self._lock(reservation_id):
            server = self._servers.get(reservation_id)
            if server is None or server.seen(self._ssh_host).phase is not Phase.READY:
                raise Unavailable("the dev server does not run at the moment")
            try:
                await self._furnish(launcher, server, ssh_public_keys, jupyter)
                report = await asyncio.to_thread(server.folder.member(0).jupyter_report)
            except OSError as error:
                raise Unavailable(f"the dev server's folder cannot be used: {error.strerror}") from error
            return None if jupyter is None else seen_in(report, jupyter)

    async def tell(self, reservation_id: ReservationId, message: str) -> None:
        """It also greets those who log in within the next minutes. Whoever is gone need not be told."""
        server = self._servers.get(reservation_id)
        if server is None:
            return
        text = "".join(letter for letter in message if letter.isprintable() or letter == "\n")
        told = Message(text, valid_until=self._clock.now() + _MESSAGE_GREETS_FOR)
        with contextlib.suppress(FileNotFoundError):
            await asyncio.to_thread(append_message, str(server.folder.messages), told)

    async def _start(self) -> None:
        await asyncio.to_thread(self._state.path.mkdir, 0o700, True, True)
        self._finding = await self._warm.start()
        limiter = await asyncio.to_thread(find_limiter)
        self._launcher = Launcher(
            self._state, self._nodes, self._finding.mode, limiter, self._ssh_host, self._closed_ports
        )
        await asyncio.to_thread(self._state.prepare, self._launcher.folder_mode)
        if self._nodes.has_real_gpus:
            await asyncio.to_thread(ensure_gpu_devices)
        await self._find_servers()
        if looking := self._foreign.refresh():
            await asyncio.wait({looking}, timeout=_END_WITHIN_S)
        self._later(self._state.empty_trash)

    def _started(self) -> Launcher:
        if self._launcher is None:
            raise Unavailable("the local cluster has not been started")
        return self._launcher

    def _lock(self, reservation_id: ReservationId) -> asyncio.Lock:
        return self._locks.setdefault(reservation_id, asyncio.Lock())

    def _own_use(self) -> OwnUse:
        servers = self._servers.values()
        members = [member for server in servers for member in server.members if not member.facts.ended]
        specs = [server.record.spec for server in servers if server.record]
        return OwnUse(
            pids=frozenset(member.process.pid for member in members if member.process),
            gpus=frozenset((share.node, gpu) for spec in specs for share in spec.shares for gpu in share.gpu_indices),
        )

    def _others(self, spec: ServerSpec) -> list[ServerSpec]:
        """Those that run, or are about to."""
        return [
            server.record.spec
            for rid, server in self._servers.items()
            if rid != spec.reservation_id and server.record and server.seen(self._ssh_host).phase is not Phase.DEAD
        ]

    # Starting

    async def _ensure_server(self, launcher: Launcher, spec: ServerSpec) -> None:
        async with self._lock(spec.reservation_id):
            server = self._servers.get(spec.reservation_id)
            if server is not None and server.seen(self._ssh_host).phase is not Phase.DEAD:
                await self._furnish(launcher, server, spec.ssh_public_keys, spec.jupyter)
                return
            launcher.check(spec, self._others(spec))
            if server is not None:
                # Whoever looks while its remains are cleared away sees what was seen before, and not a new death.
                server.broken = server.seen(self._ssh_host).reason
                server.lost = True
                if not await self._end(server):
                    raise Unavailable("what is left of the dev server's earlier run has not ended yet")
            await self._launch(launcher, spec)

    async def _launch(self, launcher: Launcher, spec: ServerSpec) -> None:
        server = KnownServer(spec.reservation_id, self._state.server(spec.reservation_id), Record(spec, (), None))
        server.preparing = "preparing its folders"
        self._servers[spec.reservation_id] = server
        self._changes.tell()
        try:
            prepared = await asyncio.to_thread(launcher.prepare, spec)
            try:
                server.record, server.host_key = prepared.record, prepared.host_key
                await self._spawn_all(server, prepared)
            finally:
                prepared.close()
        except (ClusterError, Unavailable, OSError) as error:
            # All members or none. Whoever asked decides how often it is tried.
            server.broken, server.lost = f"it could not be started: {error}", True
            await self._end(server)
            self._changes.tell()
            if isinstance(error, OSError):
                raise ClusterError(server.broken) from error
            raise
        server.preparing = None
        self._changes.tell()

    async def _spawn_all(self, server: KnownServer, prepared: Prepared) -> None:
        for rank, listener in enumerate(prepared.listeners):
            member = Member(server.folder.member(rank), self._changes.tell, self._warm.end_status)
            reading, writing = os.pipe()
            try:
                process = await self._spawn(member.folder, listener.fileno(), writing)
            except BaseException:
                os.close(reading)
                raise
            finally:
                os.close(writing)
            server.members.append(member)
            member.watch_started(process, reading)

    async def _spawn(self, folder: MemberFolder, listener: int, pipe: int) -> ProcessIdentity:
        """Once; a second time if the warm process died before it could."""
        for _ in range(2):
            lock = await asyncio.to_thread(folder.take_lock)
            if lock is None:
                raise Unavailable("what is left of the dev server's earlier run has not ended yet")
            try:
                process = await self._warm.spawn(folder.path, (listener, pipe, lock))
                lost = False
            except WarmProcessLost:
                process, lost = None, True
            finally:
                os.close(lock)
            process = process or await self._wait_for_process(folder)
            if process is not None:
                return process
            if not lost:
                raise ClusterError("the dev server's first process ended at once")
        raise Unavailable("the warm process keeps dying")

    async def _wait_for_process(self, folder: MemberFolder) -> ProcessIdentity | None:
        """Who it is, from its own words; None once nobody is left who could speak."""
        while await asyncio.to_thread(folder.is_locked):
            if found := await asyncio.to_thread(folder.find_process):
                return found
            await asyncio.sleep(0.005)
        return await asyncio.to_thread(folder.find_process)

    async def _furnish(
        self, launcher: Launcher, server: KnownServer, keys: tuple[str, ...], jupyter: JupyterWish | None
    ) -> None:
        """Who may log in and Jupyter can change while it runs; nothing else can."""
        if server.record is None:
            return
        wanted = replace(server.record.spec, ssh_public_keys=keys, jupyter=jupyter)
        if wanted == server.record.spec:
            return
        # First what tells it, so that what is recorded has always been told.
        await asyncio.to_thread(launcher.furnish, server.folder, wanted)
        server.record = replace(server.record, spec=wanted)
        await asyncio.to_thread(server.folder.write_record, server.record)

    # Finding again

    async def _find_servers(self) -> None:
        """Take in what the state folder holds and forget what it no longer does."""
        there = await asyncio.to_thread(self._state.list_servers)
        for reservation_id in there - self._servers.keys():
            lock = self._lock(reservation_id)
            async with lock:
                if reservation_id not in self._servers:
                    await self._adopt(reservation_id)
        for reservation_id in self._servers.keys() - there:
            server = self._servers[reservation_id]
            if server.preparing is None and server.seen(self._ssh_host).phase is Phase.DEAD:
                self._servers.pop(reservation_id)

    async def _adopt(self, reservation_id: ReservationId) -> None:
        folder = self._state.server(reservation_id)
        if not await asyncio.to_thread(folder.exists):
            return
        server = KnownServer(reservation_id, folder)
        try:
            server.record = await asyncio.to_thread(folder.find_record)
            if server.record is None:
                server.broken, server.lost = "the control plane ended while it was being prepared", True
            else:
                server.host_key = public_line(await asyncio.to_thread(folder.host_key.read_bytes))
        except (BadRecord, OSError, ValueError) as error:
            server.broken = f"what was written down about it cannot be read: {error}"
        for member_folder in member_folders(folder, server.record):
            member = Member(member_folder, self._changes.tell, self._warm.end_status)
            await member.adopt()
            server.members.append(member)
        self._servers[reservation_id] = server
        self._changes.tell()

    # Ending

    async def _ensure_gone(self, launcher: Launcher, reservation_id: ReservationId, keep_files: bool) -> bool:
        async with self._lock(reservation_id):
            server = self._servers.get(reservation_id) or KnownServer(
                reservation_id, self._state.server(reservation_id)
            )
            if not await self._end(server):
                return False
            ranks = [folder.rank for folder in await asyncio.to_thread(server.folder.members)]
            await asyncio.to_thread(launcher.remove_groups, reservation_id, ranks)
            rubbish = await asyncio.to_thread(
                self._state.put_aside if keep_files else self._state.discard, server.folder
            )
            self._servers.pop(reservation_id, None)
            if rubbish is not None and not keep_files:
                self._later(lambda: remove_tree(rubbish))
            self._changes.tell()
            return True

    async def _end(self, server: KnownServer) -> bool:
        """Kill all of it; True once nothing lives any more. Its folders stay."""
        server.broken = server.broken or "it is being taken down"
        for member in server.members:
            member.stop_watching()
        folders = await asyncio.to_thread(server.folder.members)
        ended = await asyncio.gather(*(self._end_member(folder) for folder in folders))
        modes = [await asyncio.to_thread(folder.find_mode) for folder in folders]
        if any(mode is not None and not mode.has_namespaces for mode in modes):
            is_clean = await asyncio.to_thread(end_marked, _MARK, str(server.reservation_id))
            return is_clean and all(ended)
        return all(ended)

    async def _end_member(self, folder: MemberFolder) -> bool:
        """A process that is only being started may not have said yet who it is, but it has the lock."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_WITHIN_S):
                while True:
                    process = await asyncio.to_thread(folder.find_process)
                    if process is not None and not await self._end_first_process(process, folder):
                        return False
                    if not await asyncio.to_thread(folder.is_locked):
                        return True
                    await asyncio.sleep(0.01)
        return False

    async def _end_first_process(self, process: ProcessIdentity, folder: MemberFolder) -> bool:
        mode = await asyncio.to_thread(folder.find_mode)
        if mode is not None and not mode.has_namespaces:
            # Told to, it ends all that came to it; killed, it would leave them behind.
            await end_process(process, signal.SIGTERM, _END_WITHIN_S / 2)
        return await end_process(process, signal.SIGKILL, _END_WITHIN_S)

    def _later(self, work: Callable[[], None]) -> None:
        self._begin(asyncio.to_thread(work))

    def _begin(self, work: Coroutine[None, None, _T]) -> "asyncio.Task[_T]":
        """In a task of its own, which goes on when whoever asked for it stops waiting."""
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task
