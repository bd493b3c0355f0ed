"""`nodes groups`, `refresh`, `clear` and `move`: replaces machines once nobody is on them."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

import click

from gpudev.adapters.postgres.stores import Stores, open_stores
from gpudev.bootstrap.cloud import open_cloud, open_cluster_machines, open_node_groups
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

REASON_OPTION = click.option("--reason", default="", help="One line for everybody who waits.")


def print_reservations(there: Sequence[Reservation]) -> None:
    for one in there:
        end = one.planned_end()
        until = f"until {end:%Y-%m-%d %H:%M} UTC" if end and one.status.holds_capacity else "being cleared away"
        click.echo(f"  {short_id(one.reservation_id)}  {one.username:<24}  {one.status.value:<9}  {until}")


def audit_target(name: str, reason: str) -> str:
    return f"{name} ({reason})" if reason else name


# The commands wait and report; the order of steps is in the workflows.


_T = TypeVar("_T")
_POLL_SECONDS = 0.5
_CLOUD_POLL_SECONDS = 15.0
"""In the long run; at first more often."""
_ACKNOWLEDGED_WITHIN = timedelta(seconds=60)
_CLEARED_WITHIN = timedelta(minutes=2)
_AFTER_GRACE = timedelta(seconds=5)

_WARNING_OPTION = click.option(
    "--warning",
    "warning_minutes",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="Minutes between telling people and ending what they run.",
)


@click.command("groups")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_groups(as_json: bool) -> None:
    """The cloud's groups of machines that are ours, with how many there should be and how many are in service."""

    async def act(stores: Stores, settings: Settings) -> list[dict[str, Any]]:
        async with open_cloud(settings) as cloud:
            if cloud is None:
                raise Invalid("no cloud is configured, so there are no groups of machines: set GPU_DEV_CLOUD")
            found = await cloud.node_groups(group_prefix(settings.reconciling.node_group_prefix))
        return [{"name": one.name, "desired": one.desired, "in_service": one.in_service} for one in found]

    rows = _run_command(act)
    if as_json:
        click.echo(json.dumps(rows))
        return
    for row in rows:
        click.echo(f"{row['name']:<48}  {row['in_service']:>3} of {row['desired']:>3} in service")
    if not rows:
        click.echo("no group bears our prefix")


@click.command()
@click.argument("group")
@REASON_OPTION
@click.option("--wait", is_flag=True, help="Until those who are there have left by themselves.")
@click.option("--move", is_flag=True, help="End those whose home is on a disk, and start them again elsewhere.")
@click.option("--scratch-too", is_flag=True, help="With --move: also those whose files are lost by it.")
@_WARNING_OPTION
@click.option("--follow/--no-follow", default=True, help="Until all machines are new.", show_default=True)
def refresh(group: str, reason: str, follow: bool, **options: Any) -> None:
    """Replace all machines of GROUP (t4, cpu, or the whole name) by new ones of its present launch template.

    Its nodes are closed for new work and those who are there are told. Without --wait or --move it goes no further
    while anybody is there. May be interrupted and begun again at any time.
    """

    manner = _RefreshOptions(**options)
    if manner.scratch_too and not manner.move:
        raise click.UsageError("--scratch-too says who else is moved: it goes with --move")

    async def act(stores: Stores, settings: Settings) -> None:
        async with _open_machine_refresh(stores, settings) as replacing:
            name = replacing.full_group_name(group)
            begun = await replacing.find_running_refresh(name)
            if begun is None:
                closed = await _cordon_group(replacing, name, reason, manner.make_announcement(SystemClock().now()))
                await record_command(stores, "nodes refresh", audit_target(name, reason))
                await _empty_group(stores, name, lambda: replacing.reservations_on(closed), manner)
                begun = await _begin_refresh(replacing, name, closed)
            click.echo(f"{name}: new machines are on their way ({begun.detail})")
            if follow:
                await _follow_refresh(replacing, name, begun)

    _run_command(act)


@click.command()
@click.argument("name")
@REASON_OPTION
@_WARNING_OPTION
@click.option("--force", is_flag=True, help="Take pods away that do not end by themselves, without asking their node.")
@click.confirmation_option(prompt="This ends what people run there, for good. Go on?")
def clear(name: str, reason: str, warning_minutes: float, force: bool) -> None:
    """Close NAME, tell those who are there, and end what they run when the warning is over.

    Disks are kept. With --force also where the node does not answer any more.
    """

    async def act(stores: Stores, settings: Settings) -> None:
        draining = _make_drain(stores)
        now = SystemClock().now()
        ends_at = format_utc_time(now + _minutes(warning_minutes), now)
        there = await draining.drain(
            name, console_user(), reason, lambda _: f"what runs here ends at {ends_at}; disks are kept"
        )
        await record_command(stores, "nodes clear", audit_target(name, reason))
        click.echo(f"{name} is closed for new work")
        print_reservations(there)
        await _wait_until_empty(lambda: draining.reservations_on(name), within=_minutes(warning_minutes))
        evicting = _make_eviction(stores)
        for one in await draining.reservations_on(name):
            if not one.status.is_terminal:
                await evicting.end(one.reservation_id, f"node {audit_target(name, reason)} is needed empty")
                click.echo(f"{short_id(one.reservation_id)} of {one.username} is ended")
        if force:
            await _remove_pods(settings, name, lambda: draining.reservations_on(name))
        await _wait_until_empty(lambda: draining.reservations_on(name), within=_CLEARED_WITHIN)
        if await draining.reservations_on(name):
            raise Conflict(f"{name} is not empty yet; a node that does not answer is cleared with --force")
        click.echo(f"{name} is empty")

    _run_command(act)


@click.command()
@click.argument("reservation")
@REASON_OPTION
def move(reservation: str, reason: str) -> None:
    """End RESERVATION where it is, and start it again elsewhere with the time that is left, before others.

    What runs in it ends. Its disk goes with it, and so do added users, Jupyter and its owner's set-up; a home without a
    disk is lost. Close its node first, or it may come back there. Also finishes a move that was interrupted.
    """

    async def act(stores: Stores, settings: Settings) -> None:
        found = await find_job(stores.reservations, _OPERATOR, reservation)
        await record_command(stores, "nodes move", audit_target(str(found.reservation_id), reason))
        await _move_reservation(stores, found, reason or "its place is needed")

    _run_command(act)


# --- How -------------------------------------------------------------------------------------------------------------

_ListReservations = Callable[[], Awaitable[Sequence[Reservation]]]
_OPERATOR = User(UserId(0), "console", Role.OPERATOR)
"""Whoever may run this command may see everybody's."""


@dataclass(frozen=True, slots=True)
class _RefreshOptions:
    """What becomes of those who are there."""

    wait: bool
    move: bool
    scratch_too: bool
    warning_minutes: float

    def is_moved(self, one: Reservation) -> bool:
        return self.move and (self.scratch_too or keeps_files(one))

    def make_announcement(self, now: datetime) -> DescribeConsequence:
        end = format_utc_time(now + _minutes(self.warning_minutes), now)
        at = f"at {end} it ends here and is started again elsewhere"

        def say(one: Reservation) -> str | None:
            if not self.is_moved(one):
                return None
            return f"{at}, with its disk" if keeps_files(one) else f"{at}, without its files"

        return say


async def _empty_group(stores: Stores, group: str, list_present: _ListReservations, manner: _RefreshOptions) -> None:
    if manner.move:
        await _wait_until_empty(list_present, within=_minutes(manner.warning_minutes))
        for one in await list_present():
            if manner.is_moved(one) and not one.status.is_terminal:
                await _move_reservation(stores, one, f"the machines of {group} are replaced")
            elif not one.status.is_terminal:
                click.echo(f"{short_id(one.reservation_id)} of {one.username} has no disk and is waited for")
        for unfinished in await stores.moves.list_unfinished_moves():  # whoever began to move these was interrupted
            if (left := await stores.reservations.find_reservation(unfinished)) is not None:
                await _move_reservation(stores, left, f"the machines of {group} are replaced")
    if manner.wait or manner.move:
        await _wait_until_empty(list_present)


async def _move_reservation(stores: Stores, one: Reservation, why: str) -> None:
    evicting, clock = _make_eviction(stores), SystemClock()
    left, deadline = await evicting.begin_move(one.reservation_id, why), clock.now() + _CLEARED_WITHIN
    while not left.is_released:
        if clock.now() > deadline:
            again = f"gpu-dev-server nodes move {short_id(one.reservation_id)}"
            raise Unavailable(f"{short_id(one.reservation_id)} is not cleared away yet; later: {again}")
        await asyncio.sleep(_POLL_SECONDS)
        left = await stores.reservations.find_reservation(one.reservation_id) or left
    again_as = await evicting.finish_move(one.reservation_id)
    goes_on = "had no time left" if again_as is None else f"goes on as {short_id(again_as.reservation_id)}"
    click.echo(f"{short_id(one.reservation_id)} of {one.username} {goes_on}")


async def _cordon_group(replacing: NodeGroupRefresh, name: str, reason: str, then: DescribeConsequence) -> list[str]:
    closed, there = await replacing.close_group(name, console_user(), reason, then)
    click.echo(f"{name}: {', '.join(closed) or 'no node'} closed for new work")
    print_reservations(there)
    deadline = SystemClock().now() + _ACKNOWLEDGED_WITHIN
    while not await replacing.are_cordons_in_effect(closed):
        if SystemClock().now() > deadline:
            raise Unavailable("no processor has taken note of it, so nobody knows who is about to start there")
        await asyncio.sleep(_POLL_SECONDS)
    return closed


async def _begin_refresh(replacing: NodeGroupRefresh, name: str, closed: Sequence[str]) -> MachineRefresh:
    try:
        return await replacing.begin_refresh(name, closed)
    except Conflict as there:
        raise Conflict(f"{there}; they have been told. Later again, or with --wait or --move") from there


async def _follow_refresh(replacing: NodeGroupRefresh, name: str, begun: MachineRefresh) -> None:
    told, pauses = begun, growing_pauses(_POLL_SECONDS, _CLOUD_POLL_SECONDS, factor=1.5)
    while told.state is RefreshState.RUNNING:
        await asyncio.sleep(next(pauses))
        before, told = told, await replacing.find_last_refresh(name) or told
        if told != before:
            click.echo(f"{name}: {told.detail}, {told.percent}%")
    if told.state is RefreshState.FAILED:
        raise Conflict(f"the machines of {name} were not all replaced: {told.detail}. Its old nodes stay closed")
    for node in await replacing.finish_refresh(name):
        click.echo(f"{node} is open again, should a new machine bear its name")


async def _remove_pods(settings: Settings, node: str, list_present: _ListReservations) -> None:
    await _wait_until_empty(list_present, within=settings.kubernetes.termination_grace + _AFTER_GRACE)
    if not await list_present():
        return
    async with open_cluster_machines(settings) as machines:
        for pod in await machines.pods_on(node):
            await machines.remove_pod(pod)
            click.echo(f"pod {pod.name} is taken away")


async def _wait_until_empty(list_present: _ListReservations, *, within: timedelta | None = None) -> None:
    """Or until that much time is over. Tells of everybody who goes."""
    clock = SystemClock()
    deadline = None if within is None else clock.now() + within
    there = await list_present()
    while there and (deadline is None or clock.now() < deadline):
        await asyncio.sleep(_POLL_SECONDS)
        left = await list_present()
        still = {one.reservation_id for one in left}
        for one in there:
            if one.reservation_id not in still:
                click.echo(f"{short_id(one.reservation_id)} of {one.username} is gone")
        there = left


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
