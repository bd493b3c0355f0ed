"""Identity and lifetime of processes. A pid alone may belong to another process by now.

A process is identified by its pid, its start time and the boot in which it started. A zombie has ended. Nothing here
knows what the processes do. On systems other than Linux psutil answers; this is not tested on macOS.
"""

import ctypes
import functools
import os
import select
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

_IS_LINUX = sys.platform.startswith("linux")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_GONE = (FileNotFoundError, ProcessLookupError)


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    pid: int
    started: str
    """For comparison only: ticks since boot on Linux, else the time by which psutil distinguishes processes."""
    boot: str


@functools.cache
def boot_id() -> str:
    if _BOOT_ID.exists():
        return _BOOT_ID.read_text().strip()
    return _boot_session() or f"{psutil.boot_time():.0f}"


def identify(pid: int) -> ProcessIdentity | None:
    """The process that has this pid now. None: no process, or a zombie."""
    started = _start_time(pid)
    return None if started is None else ProcessIdentity(pid, started, boot_id())


def identify_self() -> ProcessIdentity:
    """This process, by its pid in the mounted /proc. In a fresh pid namespace that is not os.getpid()."""
    pid = int(Path("/proc/self").readlink().name) if _IS_LINUX else os.getpid()
    found = identify(pid)
    if found is None:
        raise ProcessLookupError(f"process {pid} not found in /proc, although it is this process")
    return found


def is_alive(process: ProcessIdentity) -> bool:
    return process.boot == boot_id() and _start_time(process.pid) == process.started


def open_pidfd(process: ProcessIdentity) -> int | None:
    """A descriptor for exactly this process, readable once it has ended. None: the system has no pidfds.

    Raises ProcessLookupError when it has ended.
    """
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        raise
    except OSError:  # a kernel before 5.3, or a sandbox that forbids the call
        return None
    # The pid may have passed to another process before the descriptor was open, but not after.
    if not is_alive(process):
        os.close(fd)
        raise ProcessLookupError(f"process {process.pid} has ended")
    return fd


def has_ended(process: ProcessIdentity, pidfd: int | None) -> bool:
    if pidfd is None:
        return not is_alive(process)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def send_signal(process: ProcessIdentity, number: signal.Signals, pidfd: int | None) -> None:
    """Send a signal. Nothing happens when the process has ended already."""
    try:
        if pidfd is not None:
            signal.pidfd_send_signal(pidfd, number)
        elif is_alive(process):
            os.kill(process.pid, number)
    except ProcessLookupError:
        return


def children_of(pid: int) -> list[int]:
    """Direct children, including zombies."""
    if _IS_LINUX:
        try:
            return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except _GONE:
            pass  # the process is gone, or the kernel was built without this file
    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []


def descendants_of(pid: int) -> list[int]:
    found: list[int] = []
    pending = children_of(pid)
    while pending:
        child = pending.pop()
        found.append(child)
        pending.extend(children_of(child))
    return found


def descends_from(pid: int, ancestors: frozenset[int]) -> bool:
    """Whether a process is one of these or a descendant of one."""
    visited: set[int] = set()
    while pid > 0 and pid not in visited:
        if pid in ancestors:
            return True
        visited.add(pid)
        try:
            pid = psutil.Process(pid).ppid()
        except psutil.Error:
            return False
    return False


def find_processes_by_variable(variable: str, value: str) -> list[ProcessIdentity]:
    """Live processes that were started with this variable, among those whose environment we may read."""
    has_variable = _has_variable_in_proc if _IS_LINUX else _has_variable
    found = [identify(pid) for pid in psutil.pids() if has_variable(pid, variable, value)]
    return [identity for identity in found if identity is not None]


def _has_variable(pid: int, variable: str, value: str) -> bool:
    try:
        return psutil.Process(pid).environ().get(variable) == value
    except (psutil.Error, OSError):
        return False


def _has_variable_in_proc(pid: int, variable: str, value: str) -> bool:
    """Ten times cheaper than psutil. It matters: all processes are read, again and again until the last has ended."""
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            return b"\0%b=%b\0" % (os.fsencode(variable), os.fsencode(value)) in b"\0" + file.readall()
    except OSError:
        return False


def describe_exit_status(status: int) -> str:
    """A wait status as text for people."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return f"killed by {signal.Signals(number).name}"
        except ValueError:
            return f"killed by signal {number}"
    return f"ended with exit code {os.waitstatus_to_exitcode(status)}"


def _boot_session() -> str | None:
    """macOS: the boot time moves when the clock is set; this id does not."""
    if sys.platform != "darwin":
        return None
    text, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
    result = ctypes.CDLL(None).sysctlbyname(b"kern.bootsessionuuid", text, ctypes.byref(size), None, ctypes.c_size_t(0))
    return text.value.decode() if result == 0 else None


def _start_time(pid: int) -> str | None:
    if not _IS_LINUX:
        return _start_by_psutil(pid)
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except _GONE:
        return None
    # The second field is the command's name in parentheses. It may contain anything, also parentheses.
    fields = text.rpartition(")")[2].split()
    state, started = fields[0], fields[19]
    return None if state in "ZXx" else started


def _start_by_psutil(pid: int) -> str | None:
    """Does not use create_time: on macOS psutil shifts it by how far the clock was set since the calling process
    started, so that after a laptop's sleep no process would be recognised."""
    try:
        process = psutil.Process(pid)
        started: float | None = process._ident[1]  # type: ignore[attr-defined]
        return None if started is None or process.status() == psutil.STATUS_ZOMBIE else f"{started:.3f}"
    except psutil.Error:
        return None


# Waiting on the event loop for the end of a process: by pidfd where the kernel has it, else by polling. asyncio is
# imported on use, because `gpu-dev up` starts faster without it.


POLL_S = 0.1


async def wait_until_ended(process: ProcessIdentity | None) -> None:
    import asyncio

    if process is None:
        return
    try:
        pidfd = open_pidfd(process)
    except ProcessLookupError:
        return
    if pidfd is None:
        while not has_ended(process, None):  # noqa: ASYNC110 - the kernel sends no event
            await asyncio.sleep(POLL_S)
        return
    try:
        await wait_until_readable(pidfd)
    finally:
        os.close(pidfd)


async def wait_until_readable(fd: int) -> None:
    import asyncio

    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def resolve() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(fd, resolve)
    try:
        await readable
    finally:
        loop.remove_reader(fd)
