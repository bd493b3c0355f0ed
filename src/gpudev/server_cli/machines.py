"""`nodes groups`, `refresh`, `clear` and `move`: empties nodes and replaces their machines."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

import click

from gpudev.adapters.postgres.stores import Stores, open_stores
from gpudev.bootstrap.cluster import open_cloud, open_cluster_machines, open_node_groups
from gpudev.domain.access.users import Role, User
from gpudev.domain.backoff import growing_pauses
from gpudev.domain.errors import Conflict, Invalid, Unavailable
from gpudev.domain.ids import UserId, short_id
from gpudev.domain.reservations.reservation import Reservation, format_utc_time
from gpudev.planning.cluster.reconcile_availability import group_prefix
from gpudev.ports.clock import SystemClock
from gpudev.ports.cloud import MachineRefresh, RefreshState
from gpudev.server_cli.audit import console_user, record_command
from gpudev.server_cli.command_runtime import load_server_settings
from gpudev.settings import Settings
from gpudev.workflows.cluster.drain import DescribeConsequence, Eviction, NodeDrain, keeps_files
from gpudev.workflows.cluster.machine_refresh import NodeGroupRefresh
from gpudev.workflows.reservation_views import find_job

REASON_OPTION = click.option("--reason", default="", help="One line, shown to users.")


def print_reservations(reservations: Sequence[Reservation]) -> None:
    for one in reservations:
        end = one.planned_end()
        until = f"until {end:%Y-%m-%d %H:%M} UTC" if end and one.status.holds_capacity else "being torn down"
        click.echo(f"  {short_id(one.reservation_id)}  {one.username:<24}  {one.status.value:<9}  {until}")


def audit_target(name: str, reason: str) -> str:
    return f"{name} ({reason})" if reason else name


# The commands wait and report; the workflows decide the order of steps.


_T = TypeVar("_T")
_POLL_SECONDS = 0.5
_CLOUD_POLL_SECONDS = 15.0
"""The longest interval; it starts with shorter ones."""
_ACKNOWLEDGED_WITHIN = timedelta(seconds=60)
_CLEARED_WITHIN = timedelta(minutes=2)
_AFTER_GRACE = timedelta(seconds=5)

_WARNING_OPTION = click.option(
    "--warning",
    "warning_minutes",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="Minutes between the announcement and the end of reservations.",
)


@click.command("groups")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_groups(as_json: bool) -> None:
    """List our node groups in the cloud, with desired machines and machines in service."""

    async def act(stores: Stores, settings: Settings) -> list[dict[str, Any]]:
        async with open_cloud(settings) as cloud:
            if cloud is None:
                raise Invalid("no cloud is configured, so there are no node groups; set GPU_DEV_CLOUD")
            found = await cloud.node_groups(group_prefix(settings.reconciling.node_group_prefix))
        return [{"name": one.name, "desired": one.desired, "in_service": one.in_service} for one in found]

    rows = _run_command(act)
    if as_json:
        click.echo(json.dumps(rows))
        return
    for row in rows:
        click.echo(f"{row['name']:<48}  {row['in_service']:>3} of {row['desired']:>3} in service")
    if not rows:
        click.echo("no node group has our prefix")


@click.command()
@click.argument("group")
@REASON_OPTION
@click.option("--wait", is_flag=True, help="Wait until the reservations there have ended.")
@click.option("--move", is_flag=True, help="Move reservations with a disk to other nodes.")
@click.option(
    "--scratch-too", is_flag=True, help="With --move: also reservations without a disk; their files are lost."
)
@_WARNING_OPTION
@click.option("--follow/--no-follow", default=True, help="Wait until all machines are replaced.", show_default=True)
def refresh(group: str, reason: str, follow: bool, **options: Any) -> None:
    """Replace all machines of GROUP (t4, cpu, or the full name) with new ones of its current launch template.

    Cordons its nodes and notifies their users. Without --wait or --move it stops while there are reservations.
    Can be interrupted and run again at any time.
    """

    refresh_options = _RefreshOptions(**options)
    if refresh_options.scratch_too and not refresh_options.move:
        raise click.UsageError("--scratch-too requires --move")

    async def act(stores: Stores, settings: Settings) -> None:
        async with _open_machine_refresh(stores, settings) as refreshes:
            name = refreshes.full_group_name(group)
            started = await refreshes.find_running_refresh(name)
            if started is None:
                cordoned = await _cordon_group(
                    refreshes, name, reason, refresh_options.make_announcement(SystemClock().now())
                )
                await record_command(stores, "nodes refresh", audit_target(name, reason))
                await _empty_group(stores, name, lambda: refreshes.reservations_on(cordoned), refresh_options)
                started = await _begin_refresh(refreshes, name, cordoned)
            click.echo(f"{name}: machines are being replaced ({started.detail})")
            if follow:
                await _follow_refresh(refreshes, name, started)

    _run_command(act)


@click.command()
@click.argument("name")
@REASON_OPTION
@_WARNING_OPTION
@click.option("--force", is_flag=True, help="Delete pods that do not terminate, without their node's confirmation.")
@click.confirmation_option(prompt="This ends all reservations there. Continue?")
def clear(name: str, reason: str, warning_minutes: float, force: bool) -> None:
    """Cordon NAME, notify its users, and end their reservations after the warning time.

    Disks are kept. With --force also if the node no longer answers.
    """

    async def act(stores: Stores, settings: Settings) -> None:
        node_drain = _make_drain(stores)
        now = SystemClock().now()
        ends_at = format_utc_time(now + _minutes(warning_minutes), now)
        present = await node_drain.drain(
            name, console_user(), reason, lambda _: f"this dev server ends at {ends_at}; disks are kept"
        )
        await record_command(stores, "nodes clear", audit_target(name, reason))
        click.echo(f"{name} is cordoned")
        print_reservations(present)
        await _wait_until_empty(lambda: node_drain.reservations_on(name), within=_minutes(warning_minutes))
        eviction = _make_eviction(stores)
        for one in await node_drain.reservations_on(name):
            if not one.status.is_terminal:
                await eviction.end(one.reservation_id, f"node {audit_target(name, reason)} is being cleared")
                click.echo(f"{short_id(one.reservation_id)} of {one.username} ended")
        if force:
            await _remove_pods(settings, name, lambda: node_drain.reservations_on(name))
        await _wait_until_empty(lambda: node_drain.reservations_on(name), within=_CLEARED_WITHIN)
        if await node_drain.reservations_on(name):
            raise Conflict(f"{name} is not empty yet; use --force if the node does not answer")
        click.echo(f"{name} is empty")

    _run_command(act)


@click.command()
@click.argument("reservation")
@REASON_OPTION
def move(reservation: str, reason: str) -> None:
    """Continue RESERVATION on another node, ahead of the queue, with its remaining time.

    Its processes end. Disk, collaborators, Jupyter and personalization move along; a home without a disk is lost.
    Cordon its node first, or it may start there again. Also finishes an interrupted move.
    """

    async def act(stores: Stores, settings: Settings) -> None:
        found = await find_job(stores.reservations, _OPERATOR, reservation)
        await record_command(stores, "nodes move", audit_target(str(found.reservation_id), reason))
        await _move_reservation(stores, found, reason or "moved by an operator")

    _run_command(act)


# --- Steps -----------------------------------------------------------------------------------------------------------

_ListReservations = Callable[[], Awaitable[Sequence[Reservation]]]
_OPERATOR = User(UserId(0), "console", Role.OPERATOR)
"""Operators can access all reservations."""


@dataclass(frozen=True, slots=True)
class _RefreshOptions:
    """What happens to the reservations in the group."""

    wait: bool
    move: bool
    scratch_too: bool
    warning_minutes: float

    def is_moved(self, one: Reservation) -> bool:
        return self.move and (self.scratch_too or keeps_files(one))

    def make_announcement(self, now: datetime) -> DescribeConsequence:
        end = format_utc_time(now + _minutes(self.warning_minutes), now)
        at = f"at {end} this dev server moves to another node"

        def describe(one: Reservation) -> str | None:
            if not self.is_moved(one):
                return None
            return f"{at}, with its disk" if keeps_files(one) else f"{at}, without its files"

        return describe


async def _empty_group(
    stores: Stores, group: str, list_present: _ListReservations, refresh_options: _RefreshOptions
) -> None:
    if refresh_options.move:
        await _wait_until_empty(list_present, within=_minutes(refresh_options.warning_minutes))
        for one in await list_present():
            if refresh_options.is_moved(one) and not one.status.is_terminal:
                await _move_reservation(stores, one, f"the machines of {group} are being replaced")
            elif not one.status.is_terminal:
                click.echo(f"{short_id(one.reservation_id)} of {one.username} has no disk; waiting for its end")
        for unfinished in await stores.moves.list_unfinished_moves():  # left by an interrupted command
            if (interrupted := await stores.reservations.find_reservation(unfinished)) is not None:
                await _move_reservation(stores, interrupted, f"the machines of {group} are being replaced")
    if refresh_options.wait or refresh_options.move:
        await _wait_until_empty(list_present)


async def _move_reservation(stores: Stores, one: Reservation, reason: str) -> None:
    eviction, clock = _make_eviction(stores), SystemClock()
    old, deadline = await eviction.begin_move(one.reservation_id, reason), clock.now() + _CLEARED_WITHIN
    while not old.is_released:
        if clock.now() > deadline:
            command = f"gpu-dev-server nodes move {short_id(one.reservation_id)}"
            raise Unavailable(f"{short_id(one.reservation_id)} is not released yet; to continue later: {command}")
        await asyncio.sleep(_POLL_SECONDS)
        old = await stores.reservations.find_reservation(one.reservation_id) or old
    new = await eviction.finish_move(one.reservation_id)
    result = "had no time left" if new is None else f"continues as {short_id(new.reservation_id)}"
    click.echo(f"{short_id(one.reservation_id)} of {one.username} {result}")


async def _cordon_group(refreshes: NodeGroupRefresh, name: str, reason: str, then: DescribeConsequence) -> list[str]:
    cordoned, present = await refreshes.close_group(name, console_user(), reason, then)
    click.echo(f"{name}: {', '.join(cordoned) or 'no node'} cordoned")
    print_reservations(present)
    deadline = SystemClock().now() + _ACKNOWLEDGED_WITHIN
    while not await refreshes.are_cordons_in_effect(cordoned):
        if SystemClock().now() > deadline:
            raise Unavailable("no processor has applied the cordon yet, so reservations may still start there")
        await asyncio.sleep(_POLL_SECONDS)
    return cordoned


async def _begin_refresh(refreshes: NodeGroupRefresh, name: str, cordoned: Sequence[str]) -> MachineRefresh:
    try:
        return await refreshes.begin_refresh(name, cordoned)
    except Conflict as error:
        raise Conflict(f"{error}; their users are notified. Try again later, or use --wait or --move") from error


async def _follow_refresh(refreshes: NodeGroupRefresh, name: str, started: MachineRefresh) -> None:
    state, pauses = started, growing_pauses(_POLL_SECONDS, _CLOUD_POLL_SECONDS, factor=1.5)
    while state.state is RefreshState.RUNNING:
        await asyncio.sleep(next(pauses))
        previous, state = state, await refreshes.find_last_refresh(name) or state
        if state != previous:
            click.echo(f"{name}: {state.detail}, {state.percent}%")
    if state.state is RefreshState.FAILED:
        raise Conflict(f"not all machines of {name} were replaced: {state.detail}. Its old nodes stay cordoned")
    for node in await refreshes.finish_refresh(name):
        click.echo(f"{node} is uncordoned, in case a new machine has the same name")


async def _remove_pods(settings: Settings, node: str, list_present: _ListReservations) -> None:
    await _wait_until_empty(list_present, within=settings.kubernetes.termination_grace + _AFTER_GRACE)
    if not await list_present():
        return
    async with open_cluster_machines(settings) as machines:
        for pod in await machines.pods_on(node):
            await machines.remove_pod(pod)
            click.echo(f"pod {pod.name} is deleted")


async def _wait_until_empty(list_present: _ListReservations, *, within: timedelta | None = None) -> None:
    """Or until `within` has passed. Prints each reservation that has left."""
    clock = SystemClock()
    deadline = None if within is None else clock.now() + within
    present = await list_present()
    while present and (deadline is None or clock.now() < deadline):
        await asyncio.sleep(_POLL_SECONDS)
        remaining = await list_present()
        remaining_ids = {one.reservation_id for one in remaining}
        for one in present:
            if one.reservation_id not in remaining_ids:
                click.echo(f"{short_id(one.reservation_id)} of {one.username} has left")
        present = remaining


@contextlib.asynccontextmanager
async def _open_machine_refresh(stores: Stores, settings: Settings) -> AsyncIterator[NodeGroupRefresh]:
    async with open_node_groups(settings) as groups, open_cluster_machines(settings) as machines:
        prefix = settings.reconciling.node_group_prefix
        yield NodeGroupRefresh(prefix, groups, machines, stores.cordons, _make_drain(stores))


def _make_eviction(stores: Stores) -> Eviction:
    return Eviction(stores.reservations, stores.personalizations, stores.moves, SystemClock())


def _make_drain(stores: Stores) -> NodeDrain:
    return NodeDrain(stores.cordons, stores.reservations, stores.unreleased, SystemClock())


def _run_command(act: Callable[[Stores, Settings], Awaitable[_T]]) -> _T:
    async def run() -> _T:
        settings = load_server_settings()
        stores = open_stores(settings, max_connections=2)
        try:
            return await act(stores, settings)
        finally:
            await stores.close()

    return asyncio.run(run())


def _minutes(number: float) -> timedelta:
    return timedelta(minutes=number)


COMMANDS = (list_groups, refresh, clear, move)
