"""`gpu-dev disk`: commands that change disks. Each waits for its operation and shows the result."""

import gc
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from gpudev.cli import formatting, output
from gpudev.cli.command_session import CommandApi, CommandSession
from gpudev.cli.commands.disks import disk_formatting
from gpudev.cli.exit_codes import CliError, ExitCode, usage_error, write_error
from gpudev.cli.options import DISK, DISK_ID, SIZE, SNAPSHOT, api_options
from gpudev.sdk.errors import ClientError, NotFound, Unreachable
from gpudev.sdk.http import disk_endpoints
from gpudev.sdk.http.disk_endpoints import check_operation, wait_for_operation
from gpudev.sdk.http.endpoints import ApiCall, ApiReply
from gpudev.sdk.http.event_stream import read_patience
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
_yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


def _change_options(function: _F) -> _F:
    """Options of every command that changes a disk."""
    function = click.option("--no-wait", is_flag=True, help="Do not wait until it is done.")(function)
    return api_options(function)


@click.command("create")
@click.argument("name", type=DISK)
@click.option("--size", "size_gb", type=SIZE, help="Size, e.g. 200G.  [default: set by the server]")
@_change_options
def create(name: str, size_gb: int | None, no_wait: bool, as_json: bool, api_url: str | None) -> None:
    """Create a new, empty disk.

    \b
    gpu-dev disk create data --size 200G
    """
    change = _DiskChange(api_url, no_wait=no_wait, as_json=as_json)
    operation = change.run_operation(
        disk_endpoints.create_disk(CreateDiskRequest(disk_name=name, size_gb=size_gb)), f"Creating {name}"
    )
    change.write(
        f"{change.done_word('Created')}: {operation.disk_name}.\n  gpu-dev reserve --disk {operation.disk_name}"
    )


@click.command("delete")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, type=DISK)
@_yes_option
@_change_options
def delete(names: tuple[str, ...], yes: bool, no_wait: bool, as_json: bool, api_url: str | None) -> None:
    """Delete disks. They can be restored for 30 days (`gpu-dev disk restore`).

    \b
    gpu-dev disk delete data
    gpu-dev disk delete old older --yes
    """
    change = _DiskChange(api_url, no_wait=no_wait, as_json=as_json)
    unique = tuple(dict.fromkeys(names))
    if len(unique) > 1 and not yes and not change.may_ask:
        raise usage_error("deleting several disks requires --yes without a terminal")
    if change.may_ask and not yes and not _confirmed_delete(change, unique):
        output.write_line("Nothing was deleted.")
        return
    failures: list[ClientError] = []
    for name in unique:
        try:
            _delete_one(change, name, as_json=as_json)
        except ClientError as error:  # a misspelt name does not stop the others
            failures.append(error)
    for further in failures[1:]:
        write_error(further, as_json=as_json)
    if failures:
        raise failures[0]


def _delete_one(change: "_DiskChange", name: str, *, as_json: bool) -> None:
    change.run_operation(disk_endpoints.delete_disk(name), f"Deleting {name}")
    if as_json:
        return
    until = change.fetch(disk_endpoints.get_disk(name, deleted=True)).value.restorable_until
    when = f" until {formatting.local_time(until, formatting.utc_now())}" if until else ""
    change.write(f"Deleted: {name}. It can be restored{when}:\n  gpu-dev disk restore {name}")


@click.command("restore")
@click.argument("name", type=DISK)
@click.option("--snapshot", "snapshot_id", type=SNAPSHOT, help="Restore an existing disk to this snapshot.")
@click.option("--as", "new_name", type=DISK, metavar="NAME", help="Restore a deleted disk under another name.")
@click.option(
    "--id", "disk_id", type=DISK_ID, help="Which of several deleted disks of that name.  [default: the last one]"
)
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
    """Restore a deleted disk, or restore a disk to a snapshot.

    \b
    gpu-dev disk restore data
    gpu-dev disk restore data --as data-2
    gpu-dev disk restore data --snapshot 3f2a9c1e
    """
    if snapshot_id is not None and (new_name or disk_id):
        message = "--as and --id are for a deleted disk; use `gpu-dev disk clone` to create a disk from a snapshot"
        raise click.UsageError(message)
    change = _DiskChange(api_url, no_wait=no_wait, as_json=as_json)
    if snapshot_id is not None and change.may_ask and not yes and not _confirmed_restore(change, name, snapshot_id):
        output.write_line("Nothing was restored.")
        return
    request = RestoreDiskRequest(snapshot_id=snapshot_id, new_name=new_name, disk_id=disk_id)
    operation = change.run_operation(disk_endpoints.restore_disk(name, request), f"Restoring {name}")
    if snapshot_id is None:
        change.write(f"{change.done_word('Restored')}: {operation.disk_name}, in its state at deletion.")
    else:
        short = formatting.short_id(operation.snapshot_id or snapshot_id)
        change.write(
            f"{change.done_word('Restored')}: {name} from snapshot {short}. Its previous state is kept in a snapshot."
        )


@click.command("rename")
@click.argument("name", type=DISK)
@click.argument("new_name", type=DISK)
@_change_options
def rename(name: str, new_name: str, no_wait: bool, as_json: bool, api_url: str | None) -> None:
    """Rename a disk."""
    change = _DiskChange(api_url, no_wait=no_wait, as_json=as_json)
    change.run_operation(disk_endpoints.rename_disk(name, RenameDiskRequest(new_name=new_name)), f"Renaming {name}")
    change.write(f"Renamed: {name} is now {new_name}.")


@click.command("resize")
@click.argument("name", type=DISK)
@click.option("--size", "size_gb", type=SIZE, required=True, help="New size, e.g. 200G; disks only grow.")
@_change_options
def resize(name: str, size_gb: int, no_wait: bool, as_json: bool, api_url: str | None) -> None:
    """Enlarge a disk, also while it is in use."""
    change = _DiskChange(api_url, no_wait=no_wait, as_json=as_json)
    change.run_operation(disk_endpoints.resize_disk(name, ResizeDiskRequest(size_gb=size_gb)), f"Resizing {name}")
    change.write(f"{change.done_word('Resized')}: {name}, {size_gb} GB.")


@click.command("clone")
@click.argument("name", type=DISK)
@click.argument("new_name", type=DISK)
@click.option("--size", "size_gb", type=SIZE, help="Size, e.g. 200G.  [default: size of the source]")
@click.option("--snapshot", "snapshot_id", type=SNAPSHOT, help="Clone this snapshot instead of the current state.")
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
    """Create a second, independent disk with the same files."""
    change = _DiskChange(api_url, no_wait=no_wait, as_json=as_json)
    request = CloneDiskRequest(new_name=new_name, size_gb=size_gb, snapshot_id=snapshot_id)
    change.run_operation(disk_endpoints.clone_disk(name, request), f"Cloning {name}")
    change.write(f"{change.done_word('Cloned')}: {name} to {new_name}.\n  gpu-dev reserve --disk {new_name}")


@click.command("snapshot")
@click.argument("name", type=DISK)
@_change_options
def snapshot(name: str, no_wait: bool, as_json: bool, api_url: str | None) -> None:
    """Take a snapshot of a disk, also while it is in use. One is taken at the end of every reservation anyway."""
    change = _DiskChange(api_url, no_wait=no_wait, as_json=as_json)
    operation = change.run_operation(disk_endpoints.create_snapshot(name), f"Taking a snapshot of {name}")
    change.write(f"{change.done_word('Snapshot taken')}: {name}{f', {operation.result}' if operation.result else ''}.")


COMMANDS: tuple[click.Command, ...] = (create, delete, restore, rename, resize, clone, snapshot)


class _DiskChange:
    """One operation on a disk: request, wait, show the result."""

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
        """Raises OperationFailed if the operation failed."""
        reply = self.fetch(call)
        if not self._no_wait:
            reply = wait_with_progress(self.session, reply, what, quiet=self._as_json)
        if self._as_json:
            output.write_json(reply.raw)
        return check_operation(reply.value)

    def done_word(self, word: str) -> str:
        """The first word of the result; with --no-wait the operation has only been requested."""
        return "Requested" if self._no_wait else word

    def write(self, text: str) -> None:
        if not self._as_json:
            output.write_line("\n".join(output.clean(line) for line in text.splitlines()))


def _confirmed_delete(change: _DiskChange, names: tuple[str, ...]) -> bool:
    now = formatting.utc_now()
    for name in names:
        found = change.fetch(disk_endpoints.get_disk(name)).value
        used = disk_formatting.time_or_never(found.last_used, now)
        kept = f"{found.snapshot_count} snapshot{'' if found.snapshot_count == 1 else 's'}"
        output.write_line(
            output.clean(f"  {name}  {disk_formatting.size_in_gigabytes(found.size_gb)}  last used: {used}  {kept}")
        )
    return click.confirm("Delete this disk?" if len(names) == 1 else f"Delete these {len(names)} disks?")


def _confirmed_restore(change: _DiskChange, name: str, snapshot_id: str) -> bool:
    digits, now = snapshot_id.replace("-", ""), formatting.utc_now()
    for one in change.fetch(disk_endpoints.list_snapshots(name)).value.snapshots:
        if one.snapshot_id.replace("-", "").startswith(digits):
            taken = formatting.local_time(one.created_at, now)
            output.write_line(
                output.clean(
                    f"  {formatting.short_id(one.snapshot_id)}  {taken}  {disk_formatting.snapshot_contents(one)}"
                )
            )
    return click.confirm(f"Restore {name} to this snapshot? Its current state is kept in a snapshot.")


# Requests with errors that name the next step.


def fetch_disk_call(api: CommandApi, call: ApiCall[_T]) -> ApiReply[_T]:
    try:
        return api.fetch(call)
    except NotFound as error:
        if "`gpu-dev" in error.message:
            raise
        step = "`gpu-dev disk list` shows your disks, `gpu-dev disk snapshots NAME` their snapshots"
        raise error.with_next_step(step) from error
    except Unreachable as error:
        if not error.sent or call.method == "GET":
            raise
        step = "The request may have been accepted; `gpu-dev disk list` shows your disks"
        raise error.with_next_step(step) from error


# Progress of an operation: one line redrawn on a terminal, one line per step in logs, nothing for `--json`.


_DRAW_AFTER_SECONDS = 0.3
"""A shorter operation shows no progress."""


def wait_with_progress(
    session: CommandSession, first: ApiReply[OperationView], title: str, *, quiet: bool
) -> ApiReply[OperationView]:
    """`title` precedes each step, e.g. "Cloning data". Ctrl-C stops the wait, not the operation."""
    progress = _Progress(title, quiet=quiet)
    try:
        waiting = wait_for_operation(
            session.api.client,
            first,
            patience=read_patience(session.env),
            on_change=progress.show,
            on_lost=progress.show_trouble,
        )
        gc.enable()
        return session.api.run(waiting)
    except KeyboardInterrupt:
        name = first.value.disk_name
        step = f"`gpu-dev disk show {name}` shows its progress"
        raise CliError(ExitCode.INTERRUPTED, "stopped waiting; the operation continues", step) from None
    finally:
        progress.close()


class _Progress:
    def __init__(self, title: str, *, quiet: bool) -> None:
        self._title = title
        self._quiet = quiet
        self._in_place = output.stdout_is_terminal()
        self._since = time.monotonic()
        self._last_text = ""
        self._drawn = False

    def show(self, operation: OperationView) -> None:
        trouble = f" (retrying: {operation.error})" if operation.error else ""
        self._show_text(f"{operation.step}{trouble}")

    def show_trouble(self, why: str) -> None:
        self._show_text(f"retrying: {why}")

    def close(self) -> None:
        if self._drawn:
            sys.stdout.write("\r\x1b[K")
            sys.stdout.flush()

    def _show_text(self, text: str) -> None:
        waited = time.monotonic() - self._since
        if self._quiet or waited < _DRAW_AFTER_SECONDS:
            return
        if self._in_place:
            line = output.clean(f"{self._title}: {text} ({formatting.format_clock(waited)})")
            sys.stdout.write("\r\x1b[K" + output.paint(output.cut(line, max(20, output.terminal_columns() - 1)), "dim"))
            sys.stdout.flush()
            self._drawn = True
        elif text != self._last_text:
            output.write_line(output.clean(f"{self._title}: {text}"))
            sys.stdout.flush()
        self._last_text = text
