"""Finds, starts, follows and stops the control plane, for `up`, `down` and systemd."""

import errno
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import psutil

from gpudev.adapters.local.machine.processes import ProcessIdentity, find_processes_by_variable, is_alive
from gpudev.domain.errors import Unavailable
from gpudev.embedded import supervised_processes, system
from gpudev.embedded.layout import Layout
from gpudev.embedded.progress_output import ProgressOutput, StepFailed
from gpudev.embedded.supervised_processes import StartupStep
from gpudev.log_output import open_log_file
from gpudev.settings import Settings

_SUPERVISOR_SIGNALS: supervised_processes.SignalSteps = ((signal.SIGTERM, 40.0), (signal.SIGKILL, 5.0))
"""Longer than the time-outs of all its processes together."""
_PART_SIGNALS: supervised_processes.SignalSteps = ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0))


def find_supervisor(layout: Layout) -> ProcessIdentity | None:
    """By its pid file, or, if that is lost while the lock is held, by its command line."""
    if (found := supervised_processes.find_process(layout.pid_file("supervisor"))) is not None:
        return found
    if not layout.supervisor_lock.exists() or not _is_locked(layout.supervisor_lock):
        return None
    candidates = find_processes_by_variable("GPU_DEV_HOME", str(layout.home))
    return next((process for process in candidates if _is_supervisor(process.pid)), None)


def stop_control_plane(layout: Layout) -> list[str]:
    """Stops the whole control plane, including orphans of a killed supervisor. Returns the names of what ran."""
    stopped = []
    if (supervisor := find_supervisor(layout)) is not None:
        stopped.append("supervisor")
        _end_or_raise("supervisor", supervisor, _SUPERVISOR_SIGNALS)
    for part in reversed(system.PART_NAMES):
        if (orphan := supervised_processes.find_process(layout.pid_file(part))) is not None and part != system.POSTGRES:
            stopped.append(part)
            _end_or_raise(part, orphan, _PART_SIGNALS)
        layout.pid_file(part).unlink(missing_ok=True)
    postgres = system.open_postgres(layout)
    if postgres.find_running() is not None:
        stopped.append(system.POSTGRES)
    postgres.stop()
    layout.pid_file("supervisor").unlink(missing_ok=True)
    layout.system_file.unlink(missing_ok=True)
    for handover in layout.handover_sockets:  # of a killed process
        handover.unlink(missing_ok=True)
    return stopped


@contextmanager
def hold_command_lock(layout: Layout) -> Iterator[None]:
    """Serializes `up` and `down`."""
    with layout.command_lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _discard_copied_pid_files(layout)
        yield


def _discard_copied_pid_files(layout: Layout) -> None:
    """Pid files in the copy of a running system's folder name the processes of the original system."""
    found = layout.run.stat()
    identity = f"{found.st_dev}:{found.st_ino}\n"
    try:
        written = layout.folder_identity.read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        written = None  # a new folder
    if written == identity:
        return
    if written is not None and not _is_locked(layout.supervisor_lock):
        for file in (*layout.run.glob("*.pid"), layout.system_file):
            file.unlink(missing_ok=True)
    layout.folder_identity.write_text(identity, encoding="ascii")


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


def _end_or_raise(name: str, process: ProcessIdentity, steps: supervised_processes.SignalSteps) -> None:
    if not supervised_processes.end_process(process, steps):
        raise Unavailable(f"the {name} (process {process.pid}) does not terminate")


# Starting the supervisor in the background.


_TITLES = {
    system.POSTGRES: "PostgreSQL",
    system.MIGRATIONS: "Database schema",
    system.PROCESSOR: "Processor",
    system.PROXY: "Proxy",
    system.API: "API",
}
_PORTS_TRIED = 100


def choose_free_port(settings: Settings, output: ProgressOutput, *, insist: bool) -> Settings:
    """`insist`: the port was given explicitly."""
    wanted = settings.api_port
    if _is_port_free(settings.api_host, wanted):
        return settings
    if insist:
        reason = f"port {wanted} is in use by another program"
        raise StepFailed("Port", reason, advice="Choose another --port, or omit it.")
    for port in range(wanted + 1, min(wanted + _PORTS_TRIED, 65_536)):
        if _is_port_free(settings.api_host, port):
            output.write_line(f"  Port {wanted} is in use by another program; using {port}.")
            return replace(settings, api_port=port)
    raise StepFailed("Port", f"no free port found from {wanted} on", advice="Choose one with --port.")


def _is_port_free(host: str, port: int) -> bool:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        reason = f"cannot listen on {host}, port {port} ({error.strerror})"
        raise StepFailed("Port", reason, advice="Choose another --port, or another GPU_DEV_API_HOST.") from error
    return True


def start_supervisor(layout: Layout, settings: Settings, output: ProgressOutput, timeout: float) -> ProcessIdentity:
    readable, writable = os.pipe()
    try:
        with open_log_file(layout.log_file("supervisor")) as log:
            process = subprocess.Popen(
                [sys.executable, "-m", system.SUPERVISOR_MODULE, str(writable)],
                env=system.part_environment(settings, os.environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[writable],
                start_new_session=True,  # survives the closing of the terminal
                cwd="/",
            )
    finally:
        os.close(writable)
    try:
        with os.fdopen(readable, "rb", buffering=0) as reports:
            _follow_steps(reports.fileno(), layout, output, timeout)
        if (supervisor := find_supervisor(layout)) is None:
            raise _part_failed("Supervisor", "it exited immediately", layout, "supervisor")
    except BaseException:
        # It may not have written its pid file yet.
        process.terminate()
        process.wait()
        raise
    process.returncode = 0  # it outlives this command: avoids a warning about an unreaped child
    return supervisor


def _follow_steps(reports: int, layout: Layout, output: ProgressOutput, timeout: float) -> None:
    """Prints the supervisor's steps until the last one."""
    deadline = time.monotonic() + timeout
    for step in _read_steps(reports, deadline):
        title = _TITLES.get(step.name, step.name)
        match step.state:
            case "started":
                output.step_started(title)
            case "failed":
                output.step_failed(title, step.seconds)
                raise _part_failed(title, step.reason or "unknown", layout, step.name)
            case "ok" if step.name == "supervisor":
                return
            case _:
                output.step_done(title, step.seconds)
    if time.monotonic() >= deadline:
        reason = f"not everything started within {timeout:g} s"
        raise StepFailed("Start", reason, advice=f"See {layout.logs}, or give it longer with --timeout.")
    raise _part_failed("Supervisor", "it exited before everything was started", layout, "supervisor")


def _read_steps(reports: int, deadline: float) -> Iterator[StartupStep]:
    """Ends when the supervisor exits or the deadline passes."""
    pending = b""
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([reports], [], [], left)[0]:
            return
        if not (chunk := os.read(reports, 65_536)):
            return
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            yield StartupStep(**json.loads(line))


def _part_failed(title: str, reason: str, layout: Layout, part: str) -> StepFailed:
    advice = f"Fix the error above and run `gpu-dev up` again. All logs are in {layout.logs}."
    return StepFailed(title, reason, advice=advice, log=layout.log_file(part))


# `up --foreground`: one process for a service manager to watch.


_POLL_SECONDS = 0.2


class _StopRequested(Exception):
    pass


def follow_supervisor(layout: Layout, supervisor: ProcessIdentity) -> int:
    """Runs until the system ends (0 if it was stopped, 1 if it crashed) or a signal stops it (0).

    Dev servers are not stopped: they survive a restart of the control plane.
    """
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _request_stop)
        while is_alive(supervisor):
            time.sleep(_POLL_SECONDS)
    except _StopRequested:
        stop_control_plane(layout)
        return 0
    # A supervisor that stops cleanly removes its pid file.
    return 1 if layout.pid_file("supervisor").exists() else 0


def _request_stop(_number: int, _frame: FrameType | None) -> None:
    raise _StopRequested
