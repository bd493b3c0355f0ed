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
    """The cluster's nodes, and closing them for new work."""


@nodes.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_nodes(as_json: bool) -> None:
    """Every node as last seen; also those that are away, for 30 days."""
    rows = run_with_stores(_list_rows)
    if as_json:
        click.echo(json.dumps(rows))
        return
    for row in rows:
        closed = ""
        if row["cordoned"]:
            closed = f"  by {row['by']}" + (f": {row['reason']}" if row["reason"] else "")
        click.echo(
            f"{row['name']:<32}  {row['gpu_type']:<12}  {row['state']:<9}  {row['reservations']:>3} here{closed}"
        )
    if not rows:
        click.echo("no node has been seen")


@nodes.command()
@click.argument("name")
@REASON_OPTION
def cordon(name: str, reason: str) -> None:
    """Start and promise nothing new on NAME. What runs there goes on."""

    async def act(stores: Stores) -> None:
        await stores.cordons.cordon(name, console_user(), check_cordon_reason(reason), now=SystemClock().now())
        await record_command(stores, "nodes cordon", audit_target(name, reason))

    run_with_stores(act)
    click.echo(f"{name} is closed for new work; open it with: gpu-dev-server nodes uncordon {name}")


@nodes.command()
@click.argument("name")
def uncordon(name: str) -> None:
    """Open NAME again. (A node that is closed in the cluster itself stays so.)"""

    async def act(stores: Stores) -> None:
        await stores.cordons.uncordon(name)
        await record_command(stores, "nodes uncordon", name)

    run_with_stores(act)
    click.echo(f"{name} is open again")


@nodes.command()
@click.argument("name")
@REASON_OPTION
@click.option("--wait", is_flag=True, help="Until nobody is there any more.")
def drain(name: str, reason: str, wait: bool) -> None:
    """Close NAME and ask those who are there to leave: in their open terminals and their histories. It ends nobody's
    reservation; see who is there, and cancel what cannot wait (gpu-dev cancel ID, as an operator)."""

    async def act(stores: Stores) -> None:
        draining = NodeDrain(stores.cordons, stores.reservations, stores.unreleased, SystemClock())
        there = await draining.drain(name, console_user(), reason)
        await record_command(stores, "nodes drain", audit_target(name, reason))
        click.echo(f"{name} is closed for new work")
        print_reservations(there)
        while wait and there:
            await asyncio.sleep(_POLL_SECONDS)
            left = await draining.reservations_on(name)
            for one in there:
                if one.reservation_id not in {other.reservation_id for other in left}:
                    click.echo(f"{short_id(one.reservation_id)} of {one.username} is gone")
            there = left
        if not there:
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
