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
@click.option("--all", "every", is_flag=True, help="All of yours that wait or run.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@api_options
def cancel(job_ids: tuple[str, ...], every: bool, yes: bool, as_json: bool, api_url: str | None) -> None:
    """End reservations. What runs on them ends; disks stay. With --json, one answer per line."""
    if bool(job_ids) is every:
        raise usage_error("say which reservations: ids, or --all", "`gpu-dev list` shows them")
    session = CommandSession(api_url)
    asking = not yes and not as_json and output.can_ask()
    if every and not yes and not asking:
        raise usage_error("--all wants --yes where nobody can be asked")
    wanted = _list_live_jobs(session) if every else []
    if asking and not every:
        wanted = [session.api.fetch(get_job(job_id)).value for job_id in dict.fromkeys(job_ids)]
    ids = [job.reservation_id for job in wanted] or list(dict.fromkeys(job_ids))
    if not ids:
        if not as_json:
            output.write_line("You have no live reservations.")
        return
    if asking and not _confirmed(wanted):
        output.write_line("Nothing was cancelled.")
        return
    _cancel_each(session, ids, as_json=as_json)


def _list_live_jobs(session: CommandSession) -> list[JobView]:
    return list_all_jobs(session.api, {"status": sorted(LIVE)}, _MAX_JOBS).value.jobs


def _confirmed(jobs: list[JobView]) -> bool:
    now = formatting.utc_now()
    for job in jobs:
        now_is = formatting.describe_situation(job, now)
        label = f"  {formatting.short_id(job.reservation_id)}  {formatting.hardware(job)}  {job.status}  "
        output.write_line(output.indent_below_label(output.clean(label), output.clean(now_is), 12))
    running = any(job.status == Status.ACTIVE for job in jobs)
    what = "this reservation" if len(jobs) == 1 else f"these {len(jobs)} reservations"
    warning = ", and everything that runs there" if running else ""
    return click.confirm(f"End {what}{warning}?")


def _cancel_each(session: CommandSession, ids: list[str], *, as_json: bool) -> None:
    """Every one of them, whatever becomes of the others; the first failure is how the command ends."""
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
