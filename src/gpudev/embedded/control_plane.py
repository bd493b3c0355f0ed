"""Starting the supervisor in the background, on a free port, and following its steps until the last one is taken."""

import errno
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

from gpudev.adapters.local.machine.processes import ProcessIdentity
from gpudev.embedded import system
from gpudev.embedded.layout import Layout
from gpudev.embedded.progress_output import ProgressOutput, StepFailed
from gpudev.embedded.running import find_supervisor
from gpudev.embedded.stages import StartupStep
from gpudev.settings import Settings

_TITLES = {
    system.POSTGRES: "PostgreSQL",
    system.MIGRATIONS: "Database schema",
    system.PROCESSOR: "Processor",
    system.API: "API",
}
_PORTS_TRIED = 100


def choose_free_port(settings: Settings, output: ProgressOutput, *, insist: bool) -> Settings:
    """`insist`: the person asked for this very port."""
    wanted = settings.api_port
    if _is_port_free(settings.api_host, wanted):
        return settings
    if insist:
        reason = f"port {wanted} is taken by another program"
        raise StepFailed("Port", reason, advice="Choose another --port, or leave it out.")
    for port in range(wanted + 1, min(wanted + _PORTS_TRIED, 65_536)):
        if _is_port_free(settings.api_host, port):
            output.write_line(f"  Port {wanted} is taken by another program: using {port}.")
            return replace(settings, api_port=port)
    raise StepFailed("Port", f"no port from {wanted} on is free", advice="Choose one with --port.")


def _is_port_free(host: str, port: int) -> bool:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        reason = f"nothing can listen on {host}, port {port} ({error.strerror})"
        raise StepFailed("Port", reason, advice="Choose another --port, or another GPU_DEV_API_HOST.") from error
    return True


def start_supervisor(layout: Layout, settings: Settings, output: ProgressOutput, timeout: float) -> ProcessIdentity:
    readable, writable = os.pipe()
    try:
        with layout.log_file("supervisor").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", system.SUPERVISOR_MODULE, str(writable)],
                env=system.part_environment(settings, os.environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[writable],
                start_new_session=True,  # no terminal: closing it ends nothing
                cwd="/",
            )
    finally:
        os.close(writable)
    try:
        with os.fdopen(readable, "rb", buffering=0) as reports:
            _follow_steps(reports.fileno(), layout, output, timeout)
        if (supervisor := find_supervisor(layout)) is None:
            raise _part_failed("Supervisor", "it ended at once", layout, "supervisor")
    except BaseException:
        # It may not have left word of itself yet: only we know of it.
        process.terminate()
        process.wait()
        raise
    process.returncode = 0  # not ours to wait for: it outlives this command
    return supervisor


def _follow_steps(reports: int, layout: Layout, output: ProgressOutput, timeout: float) -> None:
    """Shows the supervisor's steps until it has taken the last one."""
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
    raise _part_failed("Supervisor", "it ended before everything was started", layout, "supervisor")


def _read_steps(reports: int, deadline: float) -> Iterator[StartupStep]:
    """Ends when the supervisor has gone or the time is up."""
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
    advice = f"Put right what it says above and run `gpu-dev up` again. All logs are in {layout.logs}."
    return StepFailed(title, reason, advice=advice, log=layout.log_file(part))
