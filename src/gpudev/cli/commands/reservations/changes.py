"""`gpu-dev cancel`, `extend` and `priority`."""

import json

import click

from gpudev.cli import exit_codes, formatting, output
from gpudev.cli.command_session import CommandSession, list_all_jobs
from gpudev.cli.commands.sessions import ssh_config
from gpudev.cli.exit_codes import CliError, ExitCode, usage_error
from gpudev.cli.options import HOURS, ID, api_options
from gpudev.domain.reservations.lifecycle import LIVE, Status
from gpudev.sdk.errors import ClientError, Forbidden, Unreachable
from gpudev.sdk.http.endpoints import cancel_job, extend_job, get_job, prioritise_job
from gpudev.wire.reservations import ExtendRequest, JobView, PriorityRequest

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


@click.command()
@click.argument("job_id", metavar="ID", type=ID)
@click.option("--hours", type=HOURS, required=True, help="Hours to add.")
@api_options
def extend(job_id: str, hours: float, as_json: bool, api_url: str | None) -> None:
    """Extend an active reservation."""
    try:
        session = CommandSession(api_url)
        reply = session.api.fetch(extend_job(job_id, ExtendRequest(extension_hours=hours)))
    except Unreachable as error:
        if error.sent:
            step = f"It may have been extended; `gpu-dev status {formatting.short_id(job_id)}` shows it"
            raise CliError(ExitCode.UNREACHABLE, error.message, step) from error
        raise
    if ssh_config.own_config_file(session.env).exists():
        ssh_config.add_reservation(session, reply.value, formatting.utc_now())
    if as_json:
        output.write_json(reply.raw)
        return
    job = reply.value
    output.write_line(
        f"Extended: {formatting.short_id(job.reservation_id)} {formatting.time_remaining(job, formatting.utc_now())}."
    )


# The parser takes a negative number for an option.
@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("job_id", metavar="ID", type=ID)
@click.argument("number", metavar="N", type=click.IntRange(-100, 100))
@api_options
def priority(job_id: str, number: int, as_json: bool, api_url: str | None) -> None:
    """Set the priority of a queued reservation. For operators.

    N is from -100 to 100, by default 0. Higher priorities start first, whatever the order of submission. Users whose
    guaranteed start becomes later are notified of the reason.

    \b
    gpu-dev priority 3f2a9c1e 10
    gpu-dev priority 3f2a9c1e -- -5
    """
    try:
        reply = CommandSession(api_url).api.fetch(prioritise_job(job_id, PriorityRequest(priority=number)))
    except Forbidden as error:
        raise error.with_next_step("Ask an operator of your system") from error
    if as_json:
        output.write_json(reply.raw)
        return
    job = reply.value
    label = f"Priority of {formatting.short_id(job.reservation_id)} is {job.priority}: "
    output.write_line(
        output.indent_below_label(label, output.clean(formatting.describe_situation(job, formatting.utc_now())), 4)
    )
