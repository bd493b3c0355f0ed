"""What runs of the embedded system, by its pid files, and how it is stopped. Shared by `up`, `down` and the unit."""

import fcntl
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from gpudev.adapters.local.machine.processes import ProcessIdentity, find_processes_by_variable
from gpudev.domain.errors import Unavailable
from gpudev.embedded import pidfiles, system
from gpudev.embedded.layout import Layout

_SUPERVISOR_SIGNALS: pidfiles.SignalSteps = ((signal.SIGTERM, 40.0), (signal.SIGKILL, 5.0))
"""Longer than all its parts are given together."""
_PART_SIGNALS: pidfiles.SignalSteps = ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0))


def find_supervisor(layout: Layout) -> ProcessIdentity | None:
    """By its pid file; should that be lost while the lock says that there is one, by what it was started with."""
    if (named := pidfiles.find_process(layout.pid_file("supervisor"))) is not None:
        return named
    if not layout.supervisor_lock.exists() or not _is_locked(layout.supervisor_lock):
        return None
    candidates = find_processes_by_variable("GPU_DEV_HOME", str(layout.home))
    return next((process for process in candidates if _is_supervisor(process.pid)), None)


def stop_control_plane(layout: Layout) -> list[str]:
    """Stops the whole control plane, strays of a killed supervisor included. Returns the names of what had run."""
    stopped = []
    if (supervisor := find_supervisor(layout)) is not None:
        stopped.append("supervisor")
        _end_or_raise("supervisor", supervisor, _SUPERVISOR_SIGNALS)
    for part in reversed(system.PART_NAMES):
        if (stray := pidfiles.find_process(layout.pid_file(part))) is not None and part != system.POSTGRES:
            stopped.append(part)
            _end_or_raise(part, stray, _PART_SIGNALS)
        layout.pid_file(part).unlink(missing_ok=True)
    postgres = system.open_postgres(layout)
    if postgres.find_running() is not None:
        stopped.append(system.POSTGRES)
    postgres.stop()
    layout.pid_file("supervisor").unlink(missing_ok=True)
    layout.system_file.unlink(missing_ok=True)
    return stopped


@contextmanager
def hold_command_lock(layout: Layout) -> Iterator[None]:
    """One `up` or `down` at a time; the next one waits and then sees what the first has done."""
    with layout.command_lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _discard_copied_pid_files(layout)
        yield


def _discard_copied_pid_files(layout: Layout) -> None:
    """In the copy of a running system's folder, pid files name the processes of the other one, which lives on."""
    found = layout.run.stat()
    here = f"{found.st_dev}:{found.st_ino}\n"
    try:
        written = layout.folder_identity.read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        written = None  # new, or of a version that left no such word
    if written == here:
        return
    if written is not None and not _is_locked(layout.supervisor_lock):
        for file in (*layout.run.glob("*.pid"), layout.system_file):
            file.unlink(missing_ok=True)
    layout.folder_identity.write_text(here, encoding="ascii")


def _is_supervisor(pid: int) -> bool:
    try:
        return system.SUPERVISOR_MODULE in psutil.Process(pid).cmdline()
    except psutil.Error:
        return False


def _is_locked(path: Path) -> bool:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _end_or_raise(name: str, process: ProcessIdentity, steps: pidfiles.SignalSteps) -> None:
    if not pidfiles.end_process(process, steps):
        raise Unavailable(f"the {name} (process {process.pid}) does not end")
