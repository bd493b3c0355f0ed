"""`gpu-dev list`."""

import click

from gpudev.cli import formatting, output
from gpudev.cli.command_session import CommandSession
from gpudev.cli.command_session import list_all_jobs as list_pages
from gpudev.cli.options import TEXT, api_options
from gpudev.domain.reservations.lifecycle import LIVE, Status

_HEADER = ("ID", "STATUS", "GPUS", "TYPE", "NAME", "CREATED", "NOW")


@click.command()
@click.option("--all", "every", is_flag=True, help="Include reservations that have ended.")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice([status.value for status in Status]),
    help="Only this status; repeat for more.",
)
@click.option("--type", "--gpu-type", "gpu_type", type=TEXT, help="Only this GPU type.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Maximum number.")
@api_options
def list_jobs(
    *, every: bool, statuses: tuple[str, ...], gpu_type: str | None, limit: int, as_json: bool, api_url: str | None
) -> None:
    """Show your live reservations, newest first."""
    selected = statuses or (() if every else sorted(LIVE))
    query = {"status": list(selected)} | ({"gpu_type": gpu_type} if gpu_type else {})
    reply = list_pages(CommandSession(api_url).api, query, limit)
    if as_json:
        output.write_json(reply.raw)
        return
    jobs = reply.value.jobs
    if not jobs:
        kind = "matching" if statuses or gpu_type else "live" if not every else ""
        output.write_line(f"You have no {kind} reservations".replace("  ", " ") + "; `gpu-dev reserve` creates one.")
        return
    now = formatting.utc_now()
    rows = [
        (
            formatting.short_id(job.reservation_id),
            job.status,
            str(job.gpu_count),
            job.gpu_type,
            job.name or "-",
            formatting.local_time(job.created_at, now),
            formatting.describe_situation(job, now),
        )
        for job in jobs
    ]
    warnings = [formatting.expiry_warning(job, now) for job in jobs]
    colours = ["yellow" if end else formatting.colour_of(job.status) for job, end in zip(jobs, warnings, strict=True)]
    output.write_line(output.table(_HEADER, rows, colours, unabridged=True))
    for job, end in zip(jobs, warnings, strict=True):
        if end:
            output.write_line(output.paint(output.clean(f"{formatting.short_id(job.reservation_id)} {end}"), "yellow"))
    if reply.value.next_cursor is not None:
        output.write_line(f"Only the first {len(jobs)} are shown; `--limit` shows more.")
