"""`nodes`: lists, cordons, uncordons and drains nodes."""

import asyncio
import json
from typing import Any

import click

from gpudev.adapters.postgres.stores import Stores
from gpudev.domain.cluster import check_cordon_reason
from gpudev.domain.ids import short_id
from gpudev.ports.clock import SystemClock
from gpudev.server_cli import machines
from gpudev.server_cli.audit import console_user, record_command
from gpudev.server_cli.command_runtime import run_with_stores
from gpudev.server_cli.machines import REASON_OPTION, audit_target, print_reservations
from gpudev.workflows.cluster.drain import NodeDrain

_POLL_SECONDS = 2.0


@click.group()
def nodes() -> None:
    """List, cordon, drain and refresh the cluster's nodes."""


@nodes.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_nodes(as_json: bool) -> None:
    """List every node as last observed; lost nodes are listed for 30 days."""
    rows = run_with_stores(_list_rows)
    if as_json:
        click.echo(json.dumps(rows))
        return
    for row in rows:
        note = ""
        if row["cordoned"]:
            note = f"  by {row['by']}" + (f": {row['reason']}" if row["reason"] else "")
        count = f"{row['reservations']:>3} reservations"
        click.echo(f"{row['name']:<32}  {row['gpu_type']:<12}  {row['state']:<9}  {count}{note}")
    if not rows:
        click.echo("no nodes have been observed")


@nodes.command()
@click.argument("name")
@REASON_OPTION
def cordon(name: str, reason: str) -> None:
    """Close NAME for new reservations. Running ones continue."""

    async def act(stores: Stores) -> None:
        await stores.cordons.cordon(name, console_user(), check_cordon_reason(reason), now=SystemClock().now())
        await record_command(stores, "nodes cordon", audit_target(name, reason))

    run_with_stores(act)
    click.echo(f"{name} is cordoned; to open it again: gpu-dev-server nodes uncordon {name}")


@nodes.command()
@click.argument("name")
def uncordon(name: str) -> None:
    """Open NAME again. A node cordoned in Kubernetes itself stays cordoned."""

    async def act(stores: Stores) -> None:
        await stores.cordons.uncordon(name)
        await record_command(stores, "nodes uncordon", name)

    run_with_stores(act)
    click.echo(f"{name} is uncordoned")


@nodes.command()
@click.argument("name")
@REASON_OPTION
@click.option("--wait", is_flag=True, help="Wait until the node is empty.")
def drain(name: str, reason: str, wait: bool) -> None:
    """Cordon NAME and ask its users to leave, in their open terminals and histories. Ends no reservation; cancel those
    that cannot wait (`gpu-dev cancel ID`, as an operator)."""

    async def act(stores: Stores) -> None:
        node_drain = NodeDrain(stores.cordons, stores.reservations, stores.unreleased, SystemClock())
        reservations = await node_drain.drain(name, console_user(), reason)
        await record_command(stores, "nodes drain", audit_target(name, reason))
        click.echo(f"{name} is cordoned")
        print_reservations(reservations)
        while wait and reservations:
            await asyncio.sleep(_POLL_SECONDS)
            remaining = await node_drain.reservations_on(name)
            for one in reservations:
                if one.reservation_id not in {other.reservation_id for other in remaining}:
                    click.echo(f"{short_id(one.reservation_id)} of {one.username} has left")
            reservations = remaining
        if not reservations:
            click.echo(f"{name} is empty")

    run_with_stores(act)


async def _list_rows(stores: Stores) -> list[dict[str, Any]]:
    present, _ = await stores.nodes.nodes()
    cordons = await stores.cordons.cordons()
    held = [{share.node for share in one.shares} for one in await stores.unreleased.refresh()]
    states = {node.name: (node.gpu_type, _state(node.ready, node.schedulable)) for node in present}
    states |= {node.name: (node.gpu_type, "away") for node in await stores.cordons.list_absent_nodes()}
    states |= {name: ("", "away") for name in cordons if name not in states}
    return [
        {
            "name": name,
            "gpu_type": gpu_type,
            "state": state,
            "reservations": sum(1 for on in held if name in on),
            "cordoned": name in cordons,
            "by": cordons[name].by if name in cordons else None,
            "reason": cordons[name].reason if name in cordons else None,
        }
        for name, (gpu_type, state) in sorted(states.items())
    ]


def _state(ready: bool, schedulable: bool) -> str:
    if not ready:
        return "not ready"
    return "open" if schedulable else "closed"


for command in machines.COMMANDS:
    nodes.add_command(command)
