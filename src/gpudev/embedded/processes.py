"""Who is that process? A pid alone lies once it has been reused; a pid with its start is one process for ever.

Decides nothing about when a process should run: it names, finds and ends processes.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """One process, told apart from any later one that gets the same pid."""

    pid: int
    started: str


def find_mark(pid: int) -> ProcessMark | None:
    """The process that has this pid now; None when there is none, or only a zombie is left of it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return _find_mark_without_proc(pid)
    # The command name may hold spaces and parentheses: what follows its last ")" is safe to split.
    fields = stat.rpartition(")")[2].split()
    state, start_ticks = fields[0], fields[19]
    return None if state in "ZX" else ProcessMark(pid, f"{_boot()}:{start_ticks}")


def is_alive(mark: ProcessMark) -> bool:
    return find_mark(mark.pid) == mark


def write_mark(path: Path, mark: ProcessMark) -> None:
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(f"{mark.pid}\n{mark.started}\n", encoding="ascii")
    fresh.replace(path)


def read_mark(path: Path) -> ProcessMark | None:
    """The process a pid file names, if it still runs."""
    try:
        pid, started = path.read_text(encoding="ascii").split()
        mark = ProcessMark(int(pid), started)
    except (FileNotFoundError, ValueError):
        return None
    return mark if is_alive(mark) else None


def send(mark: ProcessMark, number: signal.Signals) -> None:
    """Signals exactly this process: through a pidfd, a reused pid cannot be hit between look and signal."""
    if not hasattr(os, "pidfd_open"):
        if is_alive(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(mark.pid, number)
        return
    try:
        descriptor = os.pidfd_open(mark.pid)
    except ProcessLookupError:
        return
    try:
        if is_alive(mark):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)


def end(mark: ProcessMark, *, steps: tuple[tuple[signal.Signals, float], ...]) -> bool:
    """Sends each signal and gives it its seconds, until the process is gone. False: it outlived them all."""
    for number, seconds in steps:
        send(mark, number)
        if wait_until(lambda: not is_alive(mark), seconds):
            return True
    return False


def wait_until(claim: Callable[[], bool], seconds: float, *, every: float = 0.01) -> bool:
    deadline = time.monotonic() + seconds
    while not claim():
        if time.monotonic() >= deadline:
            return False
        time.sleep(every)
    return True


def _find_mark_without_proc(pid: int) -> ProcessMark | None:
    if Path("/proc/self/stat").exists():
        return None
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else ProcessMark(pid, str(process.create_time()))
    except psutil.NoSuchProcess:
        return None


def _boot() -> str:
    """Ticks count from boot, so they say nothing without the boot they count from."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "boot"
