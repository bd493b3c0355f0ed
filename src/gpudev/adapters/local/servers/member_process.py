"""Watches the first process of one member: its start, its personalization, its exit.

It collects facts and calls `changed`. `observation` derives the state of the whole dev server from them.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from gpudev.adapters.local.machine.processes import (
    ProcessIdentity,
    boot_id,
    describe_exit_status,
    find_processes_by_variable,
    is_alive,
    open_pidfd,
    send_signal,
    wait_until_ended,
)
from gpudev.adapters.local.servers.pid1_reports import Pid1Report
from gpudev.adapters.local.servers.state_folder import MemberExit, MemberFolder
from gpudev.domain.reservations.command_exit import CommandExit

log = structlog.get_logger(__name__)
_READY_POLL_S = 0.05
_SETUP_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class MemberState:
    rank: int
    step: str
    ready: bool
    ended: MemberExit | None
    personalization: str | None = None
    """Result of the owner's personalization so far. None: no report yet, or no personalization."""
    command_exit: CommandExit | None = None
    """Set after its end, if the end of the reservation's command ended it."""


class Member:
    """`exit_status` returns the wait status of a process that has ended. None: unknown."""

    def __init__(
        self,
        folder: MemberFolder,
        changed: Callable[[], None],
        exit_status: Callable[[int], Awaitable[int | None]],
    ) -> None:
        self.folder = folder
        self.process: ProcessIdentity | None = None
        self._changed = changed
        self._exit_status = exit_status
        self._step = "being started"
        self._ready = False
        self._ended: MemberExit | None = None
        self._personalization: str | None = None
        self._command_exit: CommandExit | None = None
        self._pipe: int | None = None
        self._unread = b""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def state(self) -> MemberState:
        return MemberState(
            self.folder.rank, self._step, self._ready, self._ended, self._personalization, self._command_exit
        )

    def watch_started(self, process: ProcessIdentity, pipe: int) -> None:
        """Watch a process that was just started. It reports through `pipe`, which is closed here."""
        self.process = process
        self._pipe = pipe
        os.set_blocking(pipe, False)
        asyncio.get_running_loop().add_reader(pipe, self._read_reports)
        self._start_task(self._watch_exit(process))

    async def resume_watching(self) -> None:
        """Watch a member that an earlier control plane started, or record its exit."""
        process = await self._find_process()
        self.process = process
        self._ready = self.folder.is_ready()
        if process is not None and is_alive(process):
            if not self._ready:
                self._step = "starting the ssh server"
                self._start_task(self._poll_ready())
            else:
                self._start_task(self._poll_personalization())
            self._start_task(self._watch_exit(process))
            return
        self._ended = await asyncio.to_thread(self.folder.find_exit)
        if self._ended is None:
            self._ended = await asyncio.to_thread(_record_lost, self.folder, process)
        self._command_exit = await asyncio.to_thread(self.folder.find_command_exit)

    async def _find_process(self) -> ProcessIdentity | None:
        """The first process. While the lock is held, it may not have reported its pid yet."""
        while (process := await asyncio.to_thread(self.folder.find_process)) is None:
            if not await asyncio.to_thread(self.folder.is_locked):
                return await asyncio.to_thread(self.folder.find_process)
            await asyncio.sleep(_READY_POLL_S)
        return process

    def stop_watching(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._close_pipe()

    def _start_task(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch_exit(self, process: ProcessIdentity) -> None:
        await wait_until_ended(process)
        try:
            self._read_reports()  # its last report may still be in the pipe
            status = await self._exit_status(process.pid)
            self._command_exit = await asyncio.to_thread(self.folder.find_command_exit)
            self._ended = await asyncio.to_thread(_record_exit, self.folder, status)
        except Exception as error:
            # It has ended, whatever cannot be read or written about it.
            log.exception("member.exit_unreadable", folder=str(self.folder.path))
            self._ended = MemberExit(f"its first process is gone ({type(error).__name__})", watched=True)
        self._changed()

    async def _poll_ready(self) -> None:
        """Its pipe ended with the control plane that started it, so only the file remains."""
        while not self.folder.is_ready():  # noqa: ASYNC110 - another process writes the file
            await asyncio.sleep(_READY_POLL_S)
        self._ready = True
        self._changed()
        self._start_task(self._poll_personalization())

    async def _poll_personalization(self) -> None:
        """Poll until the final report: the reporting process has no descriptor of ours but that file."""
        while self._ended is None and (report := await asyncio.to_thread(self.folder.find_personalization)) is not None:
            if report.outcome is not None and report.outcome != self._personalization:
                self._personalization = report.outcome
                self._changed()
            if report.is_final:
                return
            await asyncio.sleep(_SETUP_POLL_S)

    def _read_reports(self) -> None:
        if self._pipe is None:
            return
        try:
            data = os.read(self._pipe, 65536)
        except BlockingIOError:
            return
        if not data:
            self._close_pipe()
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            report = Pid1Report.parse(line)
            if report.ready and not self._ready:
                self._ready = True
                self._start_task(self._poll_personalization())
            self._step = report.step or self._step
        self._changed()

    def _close_pipe(self) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            asyncio.get_running_loop().remove_reader(pipe)
            os.close(pipe)


async def stop_process(process: ProcessIdentity, number: signal.Signals, timeout_s: float) -> bool:
    """Send a signal and wait for the end. False: it did not end in time."""
    try:
        pidfd = open_pidfd(process)
    except ProcessLookupError:
        return True
    try:
        send_signal(process, number, pidfd)
    finally:
        if pidfd is not None:
            os.close(pidfd)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await wait_until_ended(process)
    return not is_alive(process)


def kill_processes_by_variable(variable: str, value: str, rounds: int = 20) -> bool:
    """Kill the processes with this environment variable, until none is found.

    For orphans whose first process was killed. Without a pid namespace nothing better is possible.
    """
    for _ in range(rounds):
        found = find_processes_by_variable(variable, value)
        if not found:
            return True
        for process in found:
            with contextlib.suppress(PermissionError):
                send_signal(process, signal.SIGKILL, None)
    return False


def _record_exit(folder: MemberFolder, status: int | None) -> MemberExit:
    reason = "its first process is gone" if status is None else f"its first process was {describe_exit_status(status)}"
    ended = MemberExit(_append_log(folder.find_failure() or reason, folder), watched=True)
    folder.write_exit(ended)
    return ended


def _record_lost(folder: MemberFolder, process: ProcessIdentity | None) -> MemberExit:
    if process is None:
        reason = "the control plane ended while it was being started"
    elif process.boot != boot_id():
        reason = "the machine was restarted"
    else:
        reason = folder.find_failure() or "it ended while the control plane was down"
    ended = MemberExit(_append_log(reason, folder), watched=False)
    folder.write_exit(ended)
    return ended


def _append_log(reason: str, folder: MemberFolder) -> str:
    lines = folder.last_log_lines()
    return reason if not lines else "\n".join((f"{reason}; its last log lines:", *lines))
