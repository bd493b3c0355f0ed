"""`gpu-dev down`: stops the control plane, then the dev servers. Stored data stays."""

import json
import os
import subprocess
from dataclasses import dataclass, replace

from gpudev import settings as settings_module
from gpudev.adapters.local.servers.state_folder import StateFolder
from gpudev.domain.errors import Unavailable
from gpudev.embedded import system, systemd_unit
from gpudev.embedded.control_plane import hold_command_lock, stop_control_plane
from gpudev.embedded.layout import Layout
from gpudev.embedded.progress_output import ProgressOutput, StepFailed
from gpudev.settings import Settings


@dataclass(frozen=True, slots=True)
class DownOptions:
    keep_servers: bool = False
    """Leave the dev servers running; their connections stay open."""
    at_boot: bool = False
    """Also remove the systemd unit."""
    json: bool = False
    timeout: float = 60.0


def take_down(options: DownOptions) -> int:
    output = ProgressOutput(as_json=options.json)
    settings = settings_module.load_settings(settings_module.on_this_machine(os.environ))
    settings = replace(settings, state_dir=settings.state_dir.resolve())
    layout = Layout(settings.state_dir)
    try:
        if layout.run.exists():
            with hold_command_lock(layout):
                _stop_system(layout, settings, options, output)
        else:
            _report_nothing_running(layout, output)
        if options.at_boot:
            for message in systemd_unit.remove_unit():
                output.write_line(message)
    except StepFailed as failure:
        output.write_failure(failure)
        return 1
    except OSError as error:
        advice = "Make sure that you own this folder, or set GPU_DEV_HOME to another one."
        output.write_failure(StepFailed(f"Using {layout.home}", str(error), advice=advice))
        return 1
    return 0


def _stop_system(layout: Layout, settings: Settings, options: DownOptions, output: ProgressOutput) -> None:
    from gpudev.adapters.local.network.own_networks import remove_own_networks  # `up` loads this module as well

    advice = f"See {layout.logs}; then run `gpu-dev down` again."
    with output.step("Control plane", advice=advice) as notes:
        stopped = stop_control_plane(layout)
        notes.append("stopped" if stopped else "was not running")
    servers = 0
    if not options.keep_servers:
        with output.step("Dev servers", advice=advice) as notes:
            servers = _stop_servers(settings, options.timeout)
            notes.append(f"{servers} stopped")
            remove_own_networks(settings.state_dir)
    if not stopped and not servers:
        _report_nothing_running(layout, output)
        return
    output.write_result({"ok": True, "stopped": stopped, "servers_stopped": servers, "home": str(layout.home)})
    output.write_line()
    output.write_line(f"gpu-dev is down. All data is kept in {layout.home}.")
    output.write_line("Reservations with time left start again with the next `gpu-dev up`.")


def _report_nothing_running(layout: Layout, output: ProgressOutput) -> None:
    output.write_result({"ok": True, "stopped": [], "servers_stopped": 0, "home": str(layout.home)})
    output.write_line(f"Nothing is running here ({layout.home}).")


def _stop_servers(settings: Settings, timeout: float) -> int:
    """Ends every dev server's processes, through the local cluster."""
    state = StateFolder(settings.state_dir)
    if not state.servers.exists() or not state.list_servers():
        return 0
    try:
        done = subprocess.run(
            system.server_command("stop-servers", "--json"),
            env=system.part_environment(settings, os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"dev servers did not end within {timeout:g} s") from error
    if done.returncode != 0:
        raise Unavailable((done.stderr or done.stdout).strip()[-500:] or f"exit code {done.returncode}")
    return int(json.loads(done.stdout)["stopped"])
