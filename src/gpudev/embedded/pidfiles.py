"""Word left about a running process, for whoever looks for it later; and ending a process one did not start.

Which process is meant is `adapters.local.machine.processes`' business: a pid file names the pid, its start and its boot, so
that a pid that was reused, or a file from before a reboot, names nobody.
"""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from gpudev.adapters.local.machine.processes import ProcessIdentity, has_ended, is_alive, open_pidfd, send_signal

SignalSteps = tuple[tuple[signal.Signals, float], ...]
"""Which signals to send, and how many seconds each is given."""


def write_pid_file(path: Path, process: ProcessIdentity) -> None:
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(f"{process.pid}\n{process.started}\n{process.boot}\n", encoding="ascii")
    fresh.replace(path)


def find_process(path: Path) -> ProcessIdentity | None:
    """The process a pid file names, if it still runs."""
    try:
        pid, started, boot = path.read_text(encoding="ascii").split()
        process = ProcessIdentity(int(pid), started, boot)
    except (FileNotFoundError, ValueError):
        return None
    return process if is_alive(process) else None


def end_process(process: ProcessIdentity, steps: SignalSteps) -> bool:
    """Sends each signal and gives it its time, until the process is gone. False: it outlived them all."""
    try:
        descriptor = open_pidfd(process)
    except ProcessLookupError:
        return True
    try:
        for number, seconds in steps:
            send_signal(process, number, descriptor)
            # A pidfd is readable for a zombie too: that it is not reaped yet is its parent's affair.
            if wait_until(lambda: has_ended(process, descriptor), seconds):
                return True
        return False
    finally:
        if descriptor is not None:
            os.close(descriptor)


def wait_until(claim: Callable[[], bool], seconds: float, *, every: float = 0.01) -> bool:
    deadline = time.monotonic() + seconds
    while not claim():
        if time.monotonic() >= deadline:
            return False
        time.sleep(every)
    return True
