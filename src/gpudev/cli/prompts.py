"""Interactive questions."""

from typing import TYPE_CHECKING

import click

from gpudev.cli import formatting, output
from gpudev.cli.command_session import CommandSession
from gpudev.domain.disks.names import NO_DISK
from gpudev.sdk.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from gpudev.wire.cluster import GpuAvailability
    from gpudev.wire.reservations import JobView


def is_cpu_type(gpu_type: str) -> bool:
    """Decided by the name, before any request; the server checks."""
    return gpu_type.startswith("cpu-")


def ask_gpu_type(session: CommandSession, *, gpu_count: int | None) -> str | None:
    """Ask for one of the types that have nodes. None: no type matches.

    `gpu_count` None: the user gave no count, so CPU types are offered as well.
    """
    from gpudev.sdk.http.cluster_endpoints import list_availability

    found = session.api.fetch(list_availability()).value.gpu_types
    types = [one for one in found if one.total_cluster_gpus and _matches_count(one, gpu_count)]
    if not types:
        return None
    import questionary

    choices = [questionary.Choice(_describe_type(one), value=one.gpu_type) for one in types]
    return str(questionary.select("Which GPU type?", choices=choices).unsafe_ask())


def ask_reservation(jobs: "Sequence[JobView]") -> "JobView":
    """Ask for one of several reservations."""
    import questionary

    now = formatting.utc_now()
    choices = [questionary.Choice(_describe_reservation(job, now), value=job) for job in jobs]
    chosen: JobView = questionary.select("Which reservation?", choices=choices).unsafe_ask()
    return chosen


def _describe_reservation(job: "JobView", now: "datetime") -> str:
    what = f"{formatting.short_id(job.reservation_id)}  {formatting.hardware(job)}  {job.name or '-'}  {job.status}"
    return output.clean(f"{what}  {formatting.describe_situation(job, now)}".rstrip())


def _matches_count(one: "GpuAvailability", gpu_count: int | None) -> bool:
    return gpu_count is None or (one.max_per_node == 0) == (gpu_count == 0)


def _describe_type(one: "GpuAvailability") -> str:
    unit = "slots" if one.max_per_node == 0 else "GPUs"
    free = f"{one.available_gpus} of {one.total_cluster_gpus} {unit} free"
    return output.clean(f"{one.gpu_type:<10} {free}{'  (simulated)' if one.simulated else ''}")


# Confirmation before a reservation creates a new disk.


def confirm_new_disk(session: CommandSession, name: str | None, *, may_ask: bool, quiet: bool) -> bool:
    """False: the user was asked and declined."""
    if name is None or name == NO_DISK:
        return True
    missing = _find_missing_text(session, name)
    if missing is None:
        return True
    if may_ask:
        return click.confirm(f"{output.clean(missing)}. Create a new, empty one?", default=True)
    if not quiet:
        output.write_line(output.clean(f"{missing}. Creating a new, empty one."))
    return True


def _find_missing_text(session: CommandSession, name: str) -> str | None:
    """The API's message, which also mentions a deleted disk of that name. None: the disk exists."""
    from gpudev.sdk.http import disk_endpoints

    try:
        found = session.api.fetch(disk_endpoints.get_disk(name)).value
    except NotFound as error:
        return error.message[:1].upper() + error.message[1:]
    if found.state != "failed":
        return None
    why = found.operation.error if found.operation is not None else None
    return f"Disk {name!r} could not be created{f' ({why})' if why else ''}"
