"""`up`, `down`, `stop-servers`: the embedded system on this machine."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from gpudev.embedded.down import DownOptions, take_down
from gpudev.embedded.up import UpOptions, bring_up
from gpudev.server_cli.command_runtime import load_server_settings


@click.command()
@click.option(
    "--nodes",
    "nodes_file",
    type=click.Path(path_type=Path),
    help="File that describes the nodes, or `detect` for the machine's own GPUs (default: as last time).",
)
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the API (7480, or the next free one).")
@click.option(
    "--listen",
    metavar="ADDRESS[:PORT]",
    help="Also serve other machines at this address, with TLS (default port 7443).",
)
@click.option(
    "--tls-cert",
    type=click.Path(path_type=Path),
    help="Certificate for --listen, with its chain (default: self-signed).",
)
@click.option("--tls-key", type=click.Path(path_type=Path), help="Private key of the certificate.")
@click.option("--foreground", is_flag=True, help="Run in the foreground; Ctrl-C stops the system.")
@click.option("--at-boot", is_flag=True, help="Also install a systemd unit that starts it at boot.")
@click.option(
    "--timeout", type=float, default=180.0, show_default=True, help="Maximum seconds for each phase of the start."
)
@click.option("--json", is_flag=True, help="Print JSON.")
def up(**options: Any) -> None:
    """Start the whole system on this machine, unless it already runs."""
    sys.exit(bring_up(UpOptions(**options)))


@click.command()
@click.option("--keep-servers", is_flag=True, help="Leave dev servers running without a control plane.")
@click.option("--at-boot", is_flag=True, help="Also remove the systemd unit.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def down(keep_servers: bool, at_boot: bool, as_json: bool) -> None:
    """Stop the system on this machine. Disks and history are kept; `up` starts reservations with time left again."""
    sys.exit(take_down(DownOptions(keep_servers=keep_servers, at_boot=at_boot, json=as_json)))


@click.command("stop-servers", hidden=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def stop_servers(as_json: bool) -> None:
    """Stop every dev server's processes and keep its folder (used by `down`)."""
    import asyncio

    from gpudev.adapters.local.machine.nodes import load_nodes
    from gpudev.bootstrap.cluster import make_local_cluster

    settings = load_server_settings()
    cluster = make_local_cluster(settings, load_nodes(settings.nodes_file), starts_servers=False)

    async def act() -> int:
        await cluster.start()
        try:
            return await cluster.stop_servers()
        finally:
            await cluster.close()

    stopped = asyncio.run(act())
    click.echo(json.dumps({"stopped": stopped}) if as_json else f"stopped {stopped} dev server(s)")
