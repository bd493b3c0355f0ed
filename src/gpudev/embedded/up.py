"""`gpu-dev up`: starts the system step by step, or reports that it already runs.

Decides what is printed, and what is stopped again when a step fails. The supervisor starts the services.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from gpudev import settings as settings_module
from gpudev.adapters.local.machine.cgroups import find_cgroup_limiter
from gpudev.adapters.local.machine.isolation import describe_isolation as in_words
from gpudev.adapters.local.machine.isolation_probe import probe_isolation
from gpudev.adapters.local.machine.nodes import load_nodes
from gpudev.adapters.local.machine.processes import ProcessIdentity
from gpudev.credentials_file import Credential, FileUnusable
from gpudev.domain.errors import Invalid, Unavailable
from gpudev.embedded import api_probe, listen_options, owner_credentials, system, systemd_unit
from gpudev.embedded.control_plane import (
    choose_free_port,
    find_supervisor,
    follow_supervisor,
    hold_command_lock,
    start_supervisor,
    stop_control_plane,
)
from gpudev.embedded.layout import Layout, newest_migration, read_json, write_json
from gpudev.embedded.progress_output import ProgressOutput, StepFailed
from gpudev.embedded.supervised_processes import wait_until
from gpudev.http_edge.handover_sockets import PROXY_SOCKET, is_received
from gpudev.settings import Settings
from gpudev.wire.cluster import ClusterStatus, NodeView

DETECT = "detect"
"""Given instead of a nodes file: detect the machine's GPUs, whatever file was used last."""


@dataclass(frozen=True, slots=True)
class UpOptions:
    nodes_file: Path | None = None
    """None: from the settings, otherwise detected."""
    port: int | None = None
    """None: from the settings, or the next free port."""
    listen: str | None = None
    """ADDRESS[:PORT] of the TLS listener for other machines. None: from the settings, otherwise no listener."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    foreground: bool = False
    at_boot: bool = False
    json: bool = False
    timeout: float = 180.0
    """Seconds that each phase of the start may take."""


@dataclass(frozen=True, slots=True)
class UpContext:
    """The inputs of one `up`."""

    options: UpOptions
    settings: Settings
    layout: Layout
    output: ProgressOutput

    @property
    def api_url(self) -> str:
        return system.api_url(self.settings)


@dataclass(frozen=True, slots=True)
class RunningSystem:
    """A system that is ready."""

    supervisor: ProcessIdentity
    since: str
    credential: Credential
    status: ClusterStatus
    isolation: str


def bring_up(options: UpOptions) -> int:
    output = ProgressOutput(as_json=options.json)
    try:
        settings = _choose_settings(options)
    except StepFailed as failure:
        output.write_failure(failure)
        return 1
    up = UpContext(options, settings, Layout(settings.state_dir), output)
    signal.signal(signal.SIGTERM, _interrupt)  # like Ctrl-C: everything started is stopped again
    try:
        if options.at_boot:
            systemd_unit.require_systemd()
        up.layout.make_folders()
        with hold_command_lock(up.layout):
            running = _find_running(up) or _start_system(up)
        if options.at_boot:
            for message in systemd_unit.install_unit(
                up.layout.home, settings.nodes_file, options.port, listen_options.listen_environment(settings)
            ):
                output.write_line(message)
        # Within the try, so that no signal goes unhandled in between.
        return follow_supervisor(up.layout, running) if options.foreground else 0
    except StepFailed as failure:
        output.write_failure(failure)
        return 1
    except OSError as error:
        output.write_failure(_folder_unusable(up.layout, error))
        return 1
    except KeyboardInterrupt:
        if options.foreground:  # the normal end of --foreground, also during the start
            if find_supervisor(up.layout) is not None:
                stop_control_plane(up.layout)  # signalled between the start and follow_supervisor
            return 0
        output.write_line("\nInterrupted: everything that this command started has been stopped.")
        return 130


def _choose_settings(options: UpOptions) -> Settings:
    settings = settings_module.load_settings(settings_module.on_this_machine(os.environ))
    home = settings.state_dir.resolve()
    chosen = replace(
        settings,
        state_dir=home,
        nodes_file=_choose_nodes_file(options.nodes_file, settings.nodes_file, Layout(home)),
        api_port=options.port if options.port is not None else settings.api_port,
    )
    return listen_options.apply_listen_options(chosen, options.listen, options.tls_cert, options.tls_key, os.environ)


def _choose_nodes_file(requested: Path | None, configured: Path | None, layout: Layout) -> Path | None:
    """From the option, otherwise from the settings, otherwise the last one used. `detect` means none."""
    if requested is not None and str(requested) == DETECT:
        return None
    chosen = requested or configured
    if chosen is not None:
        return chosen.resolve()
    try:
        last_used = (read_json(layout.last_nodes_file) or {}).get("nodes_file")
    except OSError as error:
        raise _folder_unusable(layout, error) from error
    return Path(last_used) if isinstance(last_used, str) else None


def _folder_unusable(layout: Layout, error: OSError) -> StepFailed:
    advice = "Make sure that you own this folder, or set GPU_DEV_HOME to another one."
    return StepFailed(f"Using {layout.home}", str(error), advice=advice)


def _find_running(up: UpContext) -> ProcessIdentity | None:
    """Reports the system that already runs here, and makes sure that its owner has a working key."""
    supervisor = find_supervisor(up.layout)
    if supervisor is None:
        return None
    known = read_json(up.layout.system_file) or {}
    requested = up
    up = replace(up, settings=listen_options.with_running_listener(_running_settings(up.settings, known), up.layout))
    up.output.write_line(f"gpu-dev is already running (process {supervisor.pid}).")
    if known and known.get("schema") != newest_migration():
        up.output.write_line(
            "It was started by another version. To switch to this one: `gpu-dev down`, then `gpu-dev up`."
        )
    other_listen = requested.options.listen is not None and requested.settings.listen != up.settings.listen
    other_port = requested.options.port not in (None, up.settings.api_port)
    if requested.options.nodes_file is not None or other_port or other_listen:
        up.output.write_line("Its options are unchanged; to change nodes, port or address, run `gpu-dev down` first.")
    running = _await_ready(up, supervisor, str(known.get("since") or _now()))
    if not known:  # lost or damaged; clients read it
        write_json(up.layout.system_file, _describe_system(up, running))
    _report(up, running, found=True)
    return supervisor


def _running_settings(settings: Settings, known: dict[str, Any]) -> Settings:
    """The running system's port and nodes file instead of those of this call."""
    port = str(known.get("api_url", "")).rpartition(":")[2]
    source = known.get("nodes_file")
    return replace(
        settings,
        api_port=int(port) if port.isdigit() else settings.api_port,
        nodes_file=Path(source) if isinstance(source, str) else None,
    )


def _start_system(up: UpContext) -> ProcessIdentity:
    up.output.write_line(f"Starting gpu-dev in {up.layout.home}")
    try:
        load_nodes(up.settings.nodes_file)
    except Invalid as error:
        advice = "Correct it, or use `--nodes detect` for the machine's own GPUs."
        raise StepFailed("Nodes file", error.message, advice=advice) from error
    listen_options.check_listening(up.settings)
    stop_control_plane(up.layout)  # leftovers of a killed supervisor
    settings = choose_free_port(up.settings, up.output, insist=up.options.port is not None)
    up = replace(up, settings=settings)
    with _stop_on_failure(up.layout):
        supervisor = start_supervisor(up.layout, up.settings, up.output, up.options.timeout)
        running = _await_ready(up, supervisor, _now())
        nodes_file = up.settings.nodes_file
        write_json(up.layout.last_nodes_file, {"nodes_file": None if nodes_file is None else str(nodes_file)})
        write_json(up.layout.system_file, _describe_system(up, running))
    _report(up, running, found=False)
    return supervisor


@contextmanager
def _stop_on_failure(layout: Layout) -> Iterator[None]:
    try:
        yield
    except BaseException:  # Ctrl-C too: nothing is left half-started
        stop_control_plane(layout)
        raise


def _await_ready(up: UpContext, supervisor: ProcessIdentity, since: str) -> RunningSystem:
    advice = f"See the logs in {up.layout.logs}; `gpu-dev down`, then `gpu-dev up`."
    with up.output.step("Ready", advice=advice):
        if not wait_until(lambda: _why_not_ready(up) is None, up.options.timeout, every=0.05):
            part, reason = _why_not_ready(up) or (system.PROCESSOR, "not ready in time")
            raise StepFailed("Ready", reason, advice=advice, log=up.layout.log_file(part))
    with up.output.step("Your key", advice=advice) as notes:
        try:
            credential = owner_credentials.ensure_owner_key(
                up.api_url, system.part_environment(up.settings, os.environ)
            )
            owner_credentials.ensure_ssh_key()
        except FileUnusable as error:
            raise StepFailed("Your key", error.message, advice=error.next_step or advice) from error
        notes.append(credential.username or "")
    with up.output.step("Nodes", advice=advice) as notes:
        status = _await_nodes(up, credential.api_key)
        notes.append(f"{len(status.nodes)} found")
    return RunningSystem(supervisor, since, credential, status, describe_isolation(up.settings))


def _why_not_ready(up: UpContext) -> tuple[str, str] | None:
    """The process whose log says more, and the reason. None: everything is ready."""
    if (reason := api_probe.why_not_ready(up.api_url)) is not None:
        return system.PROCESSOR, reason
    if not is_received(up.layout.run / PROXY_SOCKET):
        return system.PROXY, "the proxy does not answer"
    return None


def _await_nodes(up: UpContext, api_key: str) -> ClusterStatus:
    deadline = time.monotonic() + up.options.timeout
    while True:
        status = api_probe.find_cluster_status(up.api_url, api_key)
        if status is not None and status.nodes:
            return status
        if time.monotonic() > deadline:
            raise Unavailable(
                f"the processor reports no nodes ({status.processor if status else 'the API does not answer'})"
            )
        time.sleep(0.05)


def _describe_system(up: UpContext, running: RunningSystem) -> dict[str, Any]:
    nodes_file = up.settings.nodes_file
    return {
        "api_url": up.api_url,
        "docs_url": f"{up.api_url}/docs",
        "home": str(up.layout.home),
        "since": running.since,
        "pids": _pids(up.layout),
        "isolation": running.isolation,
        "schema": newest_migration(),
        "nodes_file": None if nodes_file is None else str(nodes_file),
        "nodes": [asdict(node) for node in running.status.nodes],
        "username": running.credential.username,
        **listen_options.describe_listening(up.settings),
    }


def _pids(layout: Layout) -> dict[str, int]:
    pids = {}
    for name in ("supervisor", system.POSTGRES, system.PROCESSOR, system.PROXY, system.API):
        try:
            pids[name] = int(layout.pid_file(name).read_text(encoding="ascii").split()[0])
        except (OSError, ValueError, IndexError):
            continue
    return pids


def _report(up: UpContext, running: RunningSystem, *, found: bool) -> None:
    up.output.write_result({"ok": True, "already_running": found, **_describe_system(up, running)})
    lines = [
        "",
        *(describe_node(node) for node in running.status.nodes),
        running.isolation,
        f"API   {up.api_url}    documentation  {up.api_url}/docs",
        *_listener_lines(up.settings),
        f"Data  {up.layout.home}",
        "",
        "Next: gpu-dev reserve --gpus 1 --hours 1     gpu-dev avail     gpu-dev down",
    ]
    up.output.write_line("\n".join(lines))


def _listener_lines(settings: Settings) -> list[str]:
    if not settings.listen:
        return []
    listening = listen_options.describe_listening(settings)
    return [
        f"Remote  {listening['listen_url']}    (TLS; key {listening['fingerprint']})",
        "        to invite a colleague: gpu-dev-server users invite NAME",
        *listen_options.listen_warnings(),
    ]


def describe_node(node: NodeView) -> str:
    note = " (SIMULATED: no real GPU)" if node.simulated else ""
    return f"Node  {node.name}: {node.total_gpus} × {node.gpu_type}{note}"


def describe_isolation(settings: Settings) -> str:
    """How dev servers are isolated on this machine, probed as the local cluster does."""
    from gpudev.adapters.local.servers.server_networks import read_network_description  # it loads asyncio and structlog

    finding = probe_isolation(settings.state_dir, None)
    limits = find_cgroup_limiter().describe(finding.mode)
    return in_words(finding, limits, read_network_description(settings.state_dir))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
