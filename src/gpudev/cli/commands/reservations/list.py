"""`gpu-dev list`."""

from datetime import datetime

import click

from gpudev.cli import formatting, output
from gpudev.cli.command_session import CommandSession
from gpudev.cli.command_session import list_all_jobs as list_pages
from gpudev.cli.options import GPU_TYPE, api_options
from gpudev.domain.reservations.lifecycle import LIVE, Status
from gpudev.wire.reservations import JobView

_HEADER = ("ID", "STATUS", "GPUS", "TYPE", "NAME", "CREATED", "NOW")
_HEADER_WITH_ENDED = (*_HEADER[:-1], "RAN", "NOW")


@click.command()
@click.option("--all", "-a", "every", is_flag=True, help="Include reservations that have ended.")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice([status.value for status in Status]),
    help="Only this status; repeat for more.",
)
@click.option("--type", "--gpu-type", "-t", "gpu_type", type=GPU_TYPE, help="Only this GPU type.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Maximum number.")
@click.option("--quiet", "-q", is_flag=True, help="Print ids only, one per line.")
@api_options
def list_jobs(
    *,
    every: bool,
    statuses: tuple[str, ...],
    gpu_type: str | None,
    limit: int,
    quiet: bool,
    as_json: bool,
    api_url: str | None,
) -> None:
    """Show your live reservations, newest first.

    With --all, STATUS shows how a reservation ended: done, exit 17, killed, cancelled, expired or failed; RAN shows
    how long it ran.

    \b
    gpu-dev list
    gpu-dev list --all --limit 10
    gpu-dev cancel $(gpu-dev list --quiet)
    """
    selected = statuses or (() if every else sorted(LIVE))
    query = {"status": list(selected)} | ({"gpu_type": gpu_type} if gpu_type else {})
    reply = list_pages(CommandSession(api_url).api, query, limit)
    if as_json:
        output.write_json(reply.raw)
        return
    jobs = reply.value.jobs
    if quiet:
        for job in jobs:
            output.write_line(formatting.short_id(job.reservation_id))
        return
    if not jobs:
        kind = "matching" if statuses or gpu_type else "live" if not every else ""
        output.write_line(f"You have no {kind} reservations".replace("  ", " ") + "; `gpu-dev reserve` creates one.")
        return
    now = formatting.utc_now()
    has_ended_ones = every or any(job.status not in LIVE for job in jobs)
    rows = [_row(job, now, with_time_used=has_ended_ones) for job in jobs]
    warnings = [formatting.expiry_warning(job, now) for job in jobs]
    colours = ["yellow" if end else formatting.colour_of_outcome(job) for job, end in zip(jobs, warnings, strict=True)]
    header = _HEADER_WITH_ENDED if has_ended_ones else _HEADER
    output.write_line(output.table(header, rows, colours))
    for job, end in zip(jobs, warnings, strict=True):
        if end:
            output.write_line(output.paint(output.clean(f"{formatting.short_id(job.reservation_id)} {end}"), "yellow"))
    if reply.value.next_cursor is not None:
        output.write_line(f"Only the first {len(jobs)} are shown; `--limit` shows more.")


def _row(job: JobView, now: datetime, *, with_time_used: bool) -> tuple[str, ...]:
    situation = formatting.describe_situation(job, now)
    return (
        formatting.short_id(job.reservation_id),
        formatting.outcome(job),
        str(job.gpu_count),
        job.gpu_type,
        job.name or "-",
        formatting.local_time(job.created_at, now),
        *((formatting.time_used(job, now),) if with_time_used else ()),
        f"{situation}; {job.command}" if job.command and situation else job.command or situation,
    )
