"""`gpu-dev disk`: commands that change disks. Each waits for its operation and shows the result."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from gpudev.cli import formatting, output
from gpudev.cli.command_session import CommandSession
from gpudev.cli.commands.disks import disk_formatting
from gpudev.cli.commands.disks.disk_requests import fetch_disk_call, wait_with_progress
from gpudev.cli.options import DISK, DISK_ID, SNAPSHOT, api_options
from gpudev.sdk.http import disk_endpoints
from gpudev.sdk.http.disk_endpoints import check_operation
from gpudev.sdk.http.endpoints import ApiCall, ApiReply
from gpudev.wire.disks import (
    CloneDiskRequest,
    CreateDiskRequest,
    OperationView,
    RenameDiskRequest,
    ResizeDiskRequest,
    RestoreDiskRequest,
)

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")
_SIZE = click.IntRange(1, 65536)
_yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


def _change_options(function: _F) -> _F:
    """For every command that changes something."""
    function = click.option("--no-wait", is_flag=True, help="Do not wait until it is done.")(function)
    return api_options(function)


@click.command("create")
@click.argument("name", type=DISK)
@click.option("--size", "size_gb", type=_SIZE, metavar="GB", help="In GB.  [default: the server's]")
@_change_options
def create(name: str, size_gb: int | None, no_wait: bool, as_json: bool, api_url: str | None) -> None:
    """Make a new, empty disk."""
    act = _DiskChange(api_url, no_wait=no_wait, as_json=as_json)
    operation = act.run_operation(
        disk_endpoints.create_disk(CreateDiskRequest(disk_name=name, size_gb=size_gb)), f"Creating {name}"
    )
    act.write(f"{act.done_word('Created')}: {operation.disk_name}.\n  gpu-dev reserve --disk {operation.disk_name}")


@click.command("delete")
@click.argument("name", type=DISK)
@_yes_option
@_change_options
def delete(name: str, yes: bool, no_wait: bool, as_json: bool, api_url: str | None) -> None:
    """Delete a disk. It can be restored for a while (`gpu-dev disk restore`)."""
    act = _DiskChange(api_url, no_wait=no_wait, as_json=as_json)
    if act.may_ask and not yes and not _confirmed_delete(act, name):
        output.write_line("Nothing was deleted.")
        return
    act.run_operation(disk_endpoints.delete_disk(name), f"Deleting {name}")
    if as_json:
        return
    until = act.fetch(disk_endpoints.get_disk(name, deleted=True)).value.restorable_until
    when = f" until {formatting.local_time(until, formatting.utc_now())}" if until else ""
    act.write(f"Deleted: {name}. It can be restored{when}:\n  gpu-dev disk restore {name}")


@click.command("restore")
@click.argument("name", type=DISK)
@click.option("--snapshot", "snapshot_id", type=SNAPSHOT, help="Go back to this snapshot of a disk that is there.")
@click.option("--as", "new_name", type=DISK, metavar="NAME", help="Bring a deleted disk back under another name.")
@click.option("--id", "disk_id", type=DISK_ID, help="Which of several deleted disks of that name; else the last one.")
@_yes_option
@_change_options
def restore(
    *,
    name: str,
    snapshot_id: str | None,
    new_name: str | None,
    disk_id: str | None,
    yes: bool,
    no_wait: bool,
    as_json: bool,
    api_url: str | None,
) -> None:
    """Bring a deleted disk back, or take a disk back to a snapshot.

    \b
    gpu-dev disk restore data
    gpu-dev disk restore data --as data-2
    gpu-dev disk restore data --snapshot 3f2a9c1e
    """
    if snapshot_id is not None and (new_name or disk_id):
        words = "--as and --id are for a deleted disk; `gpu-dev disk clone` makes a new disk of a snapshot"
        raise click.UsageError(words)
    act = _DiskChange(api_url, no_wait=no_wait, as_json=as_json)
    if snapshot_id is not None and act.may_ask and not yes and not _confirmed_restore(act, name, snapshot_id):
        output.write_line("Nothing was restored.")
        return
    wanted = RestoreDiskRequest(snapshot_id=snapshot_id, new_name=new_name, disk_id=disk_id)
    operation = act.run_operation(disk_endpoints.restore_disk(name, wanted), f"Restoring {name}")
    if snapshot_id is None:
        act.write(f"{act.done_word('Restored')}: {operation.disk_name}, as it was when it was deleted.")
    else:
        short = formatting.short_id(operation.snapshot_id or snapshot_id)
        act.write(f"{act.done_word('Restored')}: {name} from snapshot {short}. What was on it is kept in a snapshot.")


@click.command("rename")
@click.argument("name", type=DISK)
@click.argument("new_name", type=DISK)
@_change_options
def rename(name: str, new_name: str, no_wait: bool, as_json: bool, api_url: str | None) -> None:
    """Give a disk another name."""
    act = _DiskChange(api_url, no_wait=no_wait, as_json=as_json)
    act.run_operation(disk_endpoints.rename_disk(name, RenameDiskRequest(new_name=new_name)), f"Renaming {name}")
    act.write(f"Renamed: {name} is now {new_name}.")


@click.command("resize")
@click.argument("name", type=DISK)
@click.option("--size", "size_gb", type=_SIZE, metavar="GB", required=True, help="In GB; disks only grow.")
@_change_options
def resize(name: str, size_gb: int, no_wait: bool, as_json: bool, api_url: str | None) -> None:
    """Make a disk larger, also while it is in use."""
    act = _DiskChange(api_url, no_wait=no_wait, as_json=as_json)
    act.run_operation(disk_endpoints.resize_disk(name, ResizeDiskRequest(size_gb=size_gb)), f"Resizing {name}")
    act.write(f"{act.done_word('Resized')}: {name}, {size_gb} GB.")


@click.command("clone")
@click.argument("name", type=DISK)
@click.argument("new_name", type=DISK)
@click.option("--size", "size_gb", type=_SIZE, metavar="GB", help="In GB.  [default: as large as the source]")
@click.option("--snapshot", "snapshot_id", type=SNAPSHOT, help="From this snapshot instead of as it is now.")
@_change_options
def clone(
    *,
    name: str,
    new_name: str,
    size_gb: int | None,
    snapshot_id: str | None,
    no_wait: bool,
    as_json: bool,
    api_url: str | None,
) -> None:
    """Make a second disk with the same files. From then on each goes its own way."""
    act = _DiskChange(api_url, no_wait=no_wait, as_json=as_json)
    wanted = CloneDiskRequest(new_name=new_name, size_gb=size_gb, snapshot_id=snapshot_id)
    act.run_operation(disk_endpoints.clone_disk(name, wanted), f"Cloning {name}")
    act.write(f"{act.done_word('Cloned')}: {name} to {new_name}.\n  gpu-dev reserve --disk {new_name}")


@click.command("snapshot")
@click.argument("name", type=DISK)
@_change_options
def snapshot(name: str, no_wait: bool, as_json: bool, api_url: str | None) -> None:
    """Keep a disk as it is now, also while it is in use. (At the end of a reservation that is done anyway.)"""
    act = _DiskChange(api_url, no_wait=no_wait, as_json=as_json)
    operation = act.run_operation(disk_endpoints.create_snapshot(name), f"Taking a snapshot of {name}")
    act.write(f"{act.done_word('Snapshot taken')}: {name}{f', {operation.result}' if operation.result else ''}.")


COMMANDS: tuple[click.Command, ...] = (create, delete, restore, rename, resize, clone, snapshot)


class _DiskChange:
    """One thing that is done to a disk, from asking to its end."""

    def __init__(self, api_url: str | None, *, no_wait: bool, as_json: bool) -> None:
        self.session = CommandSession(api_url)
        self._no_wait = no_wait
        self._as_json = as_json

    @property
    def may_ask(self) -> bool:
        return output.can_ask() and not self._as_json

    def fetch(self, call: ApiCall[_T]) -> ApiReply[_T]:
        return fetch_disk_call(self.session.api, call)

    def run_operation(self, call: ApiCall[OperationView], what: str) -> OperationView:
        """Raises what a failure means."""
        reply = self.fetch(call)
        if not self._no_wait:
            reply = wait_with_progress(self.session, reply, what, quiet=self._as_json)
        if self._as_json:
            output.write_json(reply.raw)
        return check_operation(reply.value)

    def done_word(self, word: str) -> str:
        """What is said when nobody waited for the end."""
        return "Asked for" if self._no_wait else word

    def write(self, text: str) -> None:
        if not self._as_json:
            output.write_line("\n".join(output.clean(line) for line in text.splitlines()))


def _confirmed_delete(act: _DiskChange, name: str) -> bool:
    found, now = act.fetch(disk_endpoints.get_disk(name)).value, formatting.utc_now()
    used = disk_formatting.time_or_never(found.last_used, now)
    kept = f"{found.snapshot_count} snapshot{'' if found.snapshot_count == 1 else 's'}"
    output.write_line(
        output.clean(f"  {name}  {disk_formatting.size_in_gigabytes(found.size_gb)}  last used: {used}  {kept}")
    )
    return click.confirm("Delete this disk?")


def _confirmed_restore(act: _DiskChange, name: str, snapshot_id: str) -> bool:
    digits, now = snapshot_id.replace("-", ""), formatting.utc_now()
    for one in act.fetch(disk_endpoints.list_snapshots(name)).value.snapshots:
        if one.snapshot_id.replace("-", "").startswith(digits):
            taken = formatting.local_time(one.created_at, now)
            output.write_line(
                output.clean(
                    f"  {formatting.short_id(one.snapshot_id)}  {taken}  {disk_formatting.snapshot_contents(one)}"
                )
            )
    return click.confirm(f"Take {name} back to this snapshot? What is on it now is kept in a snapshot.")
