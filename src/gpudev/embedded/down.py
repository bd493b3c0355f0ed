"""`gpu-dev down`: ends the control plane, then the dev servers. What is stored stays, and `up` takes up from there."""

import json
import os
import subprocess
from dataclasses import dataclass, replace

from gpudev import settings as settings_module
from gpudev.adapters.local.servers.state_folder import StateFolder
from gpudev.domain.errors import Unavailable
from gpudev.embedded import system
from gpudev.embedded import systemd_unit as at_boot
from gpudev.embedded.layout import Layout
from gpudev.embedded.progress_output import StepFailed, Teller
from gpudev.embedded.running import stop_control_plane, taking_turns
from gpudev.settings import Settings


@dataclass(frozen=True, slots=True)
class DownOptions:
    keep_servers: bool = False
    """Leave the dev servers running: whoever is connected stays connected."""
    at_boot: bool = False
    """Also remove what starts the system at boot."""
    json: bool = False
    timeout: float = 60.0


def take_down(options: DownOptions) -> int:
    teller = Teller(as_json=options.json)
    settings = settings_module.load()
    settings = replace(settings, state_dir=settings.state_dir.resolve())
    layout = Layout(settings.state_dir)
    try:
        if layout.run.exists():
            with taking_turns(layout):
                _take_down(layout, settings, options, teller)
        else:
            _say_nothing_runs(layout, teller)
        if options.at_boot:
            for sentence in at_boot.remove():
                teller.say(sentence)
    except StepFailed as failure:
        teller.failure(failure)
        return 1
    except OSError as error:
        advice = "Is it yours? Make it so, or set GPU_DEV_HOME to another folder."
        teller.failure(StepFailed(f"Using {layout.home}", str(error), advice=advice))
        return 1
    return 0


def _take_down(layout: Layout, settings: Settings, options: DownOptions, teller: Teller) -> None:
    advice = f"See {layout.logs}; then run `gpu-dev down` again."
    with teller.step("Control plane", advice=advice) as notes:
        stopped = stop_control_plane(layout)
        notes.append("stopped" if stopped else "was not running")
    servers = 0
    if not options.keep_servers:
        with teller.step("Dev servers", advice=advice) as notes:
            servers = _stop_servers(settings, options.timeout)
            notes.append(f"{servers} stopped")
    if not stopped and not servers:
        _say_nothing_runs(layout, teller)
        return
    teller.result({"ok": True, "stopped": stopped, "servers_stopped": servers, "home": str(layout.home)})
    teller.say()
    teller.say(f"gpu-dev is down. Everything stored is kept in {layout.home}.")
    teller.say("Reservations with time left come back with the next `gpu-dev up`.")


def _say_nothing_runs(layout: Layout, teller: Teller) -> None:
    teller.result({"ok": True, "stopped": [], "servers_stopped": 0, "home": str(layout.home)})
    teller.say(f"Nothing is running here ({layout.home}).")


def _stop_servers(settings: Settings, timeout: float) -> int:
    """Ends every dev server's processes; how, the local cluster knows."""
    state = StateFolder(settings.state_dir)
    if not state.servers.exists() or not state.list_servers():
        return 0
    try:
        done = subprocess.run(
            system.server_command("stop-servers", "--json"),
            env=system.environment(settings, os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"they did not end within {timeout:g} s") from error
    if done.returncode != 0:
        raise Unavailable((done.stderr or done.stdout).strip()[-500:] or f"exit code {done.returncode}")
    return int(json.loads(done.stdout)["stopped"])
