"""`gpu-dev disk`: commands that show disks. `disk_changes` has the commands that change them."""

from datetime import datetime

import click

from gpudev.cli import formatting, output
from gpudev.cli.command_session import CommandSession
from gpudev.cli.commands.disks import disk_changes, disk_formatting
from gpudev.cli.commands.disks.disk_changes import fetch_disk_call
from gpudev.cli.options import DISK, SNAPSHOT, api_options
from gpudev.sdk.http import disk_endpoints
from gpudev.wire.disks import ContentsView, DiskDetails, SnapshotView

_LABEL = 13
_DISKS = ("NAME", "STATE", "SIZE", "LAST USED", "SNAPSHOTS", "NOW")
_SNAPSHOTS = ("ID", "STATE", "TAKEN", "CONTENTS", "WHY")
_MOST_ENTRIES = 10
_MOST_LINES = 10
_deleted_option = click.option("--deleted", is_flag=True, help="Include deleted disks that can be restored.")


@click.group()
def disk() -> None:
    """Manage your disks. A disk keeps /home/dev between reservations.

    \b
    gpu-dev disk create data --size 200
    gpu-dev reserve --disk data
    gpu-dev disk show data
    """


for change in disk_changes.COMMANDS:
    disk.add_command(change)


@disk.command("list")
@_deleted_option
@api_options
def list_disks(deleted: bool, as_json: bool, api_url: str | None) -> None:
    """Show your disks."""
    reply = fetch_disk_call(CommandSession(api_url).api, disk_endpoints.list_disks(deleted=deleted))
    if as_json:
        output.write_json(reply.raw)
        return
    disks = reply.value.disks
    if not disks:
        output.write_line(
            "You have no disks; create one with `gpu-dev disk create NAME` or `gpu-dev reserve --disk NAME`."
        )
        return
    now = formatting.utc_now()
    rows = [
        (
            one.disk_name,
            one.state,
            disk_formatting.size_in_gigabytes(one.size_gb),
            disk_formatting.time_or_never(one.last_used, now),
            str(one.snapshot_count),
            disk_formatting.disk_situation(one, now),
        )
        for one in disks
    ]
    output.write_line(output.table(_DISKS, rows, [disk_formatting.colour_of(one) for one in disks]))


@disk.command("show")
@click.argument("name", type=DISK)
@_deleted_option
@api_options
def show(name: str, deleted: bool, as_json: bool, api_url: str | None) -> None:
    """Show one disk in full: history, snapshots and last known contents."""
    reply = fetch_disk_call(CommandSession(api_url).api, disk_endpoints.get_disk(name, deleted=deleted))
    if as_json:
        output.write_json(reply.raw)
        return
    now, found = formatting.utc_now(), reply.value
    for label, text in _facts(found, now):
        output.write_line(output.indent_below_label(f"{label:<{_LABEL}}", output.clean(text), _LABEL))
    if found.contents is not None:
        output.write_line(f"\nContents ({disk_formatting.describe_as_of(found.contents, now)}):")
        _write_contents(found.contents, now, _MOST_ENTRIES)
    elif found.snapshots:
        output.write_line("\nContents: unknown.")
    if found.snapshots:
        output.write_line("\nSnapshots:")
        _write_snapshots(found.snapshots, now)
    if found.history:
        left_out = len(found.history) - _MOST_LINES
        earlier = f" (the last {_MOST_LINES} of {len(found.history)}; --json has all)" if left_out > 0 else ""
        output.write_line(f"\nHistory{earlier}:")
    for line in found.history[-_MOST_LINES:]:
        label = f"{formatting.local_time(line.at, now)}  "
        output.write_line(output.indent_below_label(label, output.clean(f"{line.message} ({line.by})"), len(label)))


@disk.command("snapshots")
@click.argument("name", type=DISK)
@_deleted_option
@api_options
def snapshots(name: str, deleted: bool, as_json: bool, api_url: str | None) -> None:
    """Show the snapshots of a disk, newest first."""
    reply = fetch_disk_call(CommandSession(api_url).api, disk_endpoints.list_snapshots(name, deleted=deleted))
    if as_json:
        output.write_json(reply.raw)
    elif reply.value.snapshots:
        _write_snapshots(reply.value.snapshots, formatting.utc_now())
    else:
        output.write_line(f"{name} has no snapshots yet; one is taken at the end of each reservation.")


@disk.command("contents")
@click.argument("name", type=DISK)
@click.option("--snapshot", "snapshot_id", type=SNAPSHOT, help="Show this snapshot instead of the last one.")
@_deleted_option
@api_options
def contents(name: str, snapshot_id: str | None, deleted: bool, as_json: bool, api_url: str | None) -> None:
    """List the contents of a disk at its last snapshot: the top-level entries, and totals."""
    reply = fetch_disk_call(
        CommandSession(api_url).api, disk_endpoints.get_contents(name, snapshot_id, deleted=deleted)
    )
    if as_json:
        output.write_json(reply.raw)
        return
    now = formatting.utc_now()
    output.write_line(f"{name} as of {disk_formatting.describe_as_of(reply.value, now)}:")
    _write_contents(reply.value, now, len(reply.value.entries))


def _facts(found: DiskDetails, now: datetime) -> list[tuple[str, str]]:
    operation = found.operation
    facts = [
        ("Disk", f"{found.disk_name}  ({found.disk_id})"),
        ("State", found.state),
        ("Now", disk_formatting.disk_situation(found, now)),
        (
            "Size",
            disk_formatting.size_in_gigabytes(found.size_gb) if found.size_gb is not None else "set at first use",
        ),
        ("Created", formatting.local_time(found.created_at, now)),
        ("Last used", disk_formatting.time_or_never(found.last_used, now)),
        ("Deleted", disk_formatting.time_or_never(found.deleted_at, now) if found.is_deleted else ""),
        ("Volume", ", ".join(part for part in (found.volume_id, found.zone) if part)),
    ]
    if operation is not None and found.in_use and operation.state in ("waiting", "running"):
        facts.append(("In progress", disk_formatting.operation_progress(operation)))
    return [(label, text) for label, text in facts if text]


def _write_snapshots(found: list[SnapshotView], now: datetime) -> None:
    rows = [
        (
            formatting.short_id(one.snapshot_id),
            _state_of(one),
            formatting.local_time(one.created_at, now),
            disk_formatting.snapshot_contents(one),
            one.why + "".join(f"; {text}" for text in (one.error, one.lacks and f"lacks {one.lacks}") if text),
        )
        for one in found
    ]
    colours = ["green" if one.usable else "dim" for one in found]
    output.write_line(output.table(_SNAPSHOTS, rows, colours))


def _state_of(snapshot: SnapshotView) -> str:
    return "current" if snapshot.is_current and snapshot.status == "completed" else snapshot.status


def _write_contents(found: ContentsView, now: datetime, most: int) -> None:
    for entry in found.entries[:most]:
        size = "" if entry.kind == "folder" else disk_formatting.data_size(entry.size_bytes)
        name = entry.path + ("/" if entry.kind == "folder" else "")
        output.write_line(output.clean(f"  {size:>7}  {formatting.local_time(entry.modified_at, now):<20}  {name}"))
    folders = f"{found.folders} folder{'' if found.folders == 1 else 's'}"
    total = f"{disk_formatting.file_count(found.files)}, {folders}, {disk_formatting.data_size(found.size_bytes)}"
    if not found.is_counted:
        output.write_line(f"  {total} or more: the listing was stopped at its time limit")
        return
    more = "" if most >= len(found.entries) and found.is_complete else " in all"
    output.write_line(f"  {total}{more}")
