"""`gpu-dev cancel`."""

import json

import click

from gpudev.cli import exit_codes, formatting, output
from gpudev.cli.command_session import CommandSession, list_all_jobs
from gpudev.cli.commands.sessions import ssh_config
from gpudev.cli.exit_codes import usage_error
from gpudev.cli.options import ID, api_options
from gpudev.domain.reservations.lifecycle import LIVE, Status
from gpudev.sdk.errors import ClientError
from gpudev.sdk.http.endpoints import cancel_job, get_job
from gpudev.wire.reservations import JobView

_MAX_JOBS = 10_000


@click.command()
@click.argument("job_ids", metavar="[ID]...", type=ID, nargs=-1)
@click.option("--all", "every", is_flag=True, help="All your live reservations.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@api_options
def cancel(job_ids: tuple[str, ...], every: bool, yes: bool, as_json: bool, api_url: str | None) -> None:
    """Cancel reservations. Their processes end; disks are kept. With --json, prints one response per line."""
    if bool(job_ids) is every:
        raise usage_error("give reservation ids, or --all", "`gpu-dev list` shows them")
    session = CommandSession(api_url)
    may_ask = not yes and not as_json and output.can_ask()
    if every and not yes and not may_ask:
        raise usage_error("--all requires --yes without a terminal")
    jobs = _list_live_jobs(session) if every else []
    if may_ask and not every:
        jobs = [session.api.fetch(get_job(job_id)).value for job_id in dict.fromkeys(job_ids)]
    ids = [job.reservation_id for job in jobs] or list(dict.fromkeys(job_ids))
    if not ids:
        if not as_json:
            output.write_line("You have no live reservations.")
        return
    if may_ask and not _confirmed(jobs):
        output.write_line("Nothing was cancelled.")
        return
    _cancel_each(session, ids, as_json=as_json)


def _list_live_jobs(session: CommandSession) -> list[JobView]:
    return list_all_jobs(session.api, {"status": sorted(LIVE)}, _MAX_JOBS).value.jobs


def _confirmed(jobs: list[JobView]) -> bool:
    now = formatting.utc_now()
    for job in jobs:
        situation = formatting.describe_situation(job, now)
        label = f"  {formatting.short_id(job.reservation_id)}  {formatting.hardware(job)}  {job.status}  "
        output.write_line(output.indent_below_label(output.clean(label), output.clean(situation), 12))
    running = any(job.status == Status.ACTIVE for job in jobs)
    what = "this reservation" if len(jobs) == 1 else f"these {len(jobs)} reservations"
    warning = " and everything that runs there" if running else ""
    return click.confirm(f"Cancel {what}{warning}?")


def _cancel_each(session: CommandSession, ids: list[str], *, as_json: bool) -> None:
    """Cancel all, whatever fails; the first failure decides the exit code."""
    failures: list[ClientError] = []
    for job_id in ids:
        try:
            reply = session.api.fetch(cancel_job(job_id))
        except ClientError as error:
            failures.append(error)
            continue
        ssh_config.remove_reservations(session.env, {reply.value.reservation_id})
        if as_json:
            output.write_json(reply.raw)
        else:
            job = reply.value
            output.write_line(f"Cancelled: {formatting.short_id(job.reservation_id)} ({formatting.hardware(job)}).")
    for further in failures[1:]:
        output.write_note(json.dumps(exit_codes.error_json(further)) if as_json else exit_codes.error_text(further))
    if failures:
        raise failures[0]
