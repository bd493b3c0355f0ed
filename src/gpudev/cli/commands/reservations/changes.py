"""`gpu-dev cancel`, `extend` and `priority`."""

import shlex

import click

from gpudev.cli import formatting, output
from gpudev.cli.command_session import CommandSession, list_all_jobs
from gpudev.cli.commands.sessions import ssh_config
from gpudev.cli.exit_codes import CliError, ExitCode, usage_error, write_error
from gpudev.cli.job_selection import choose_job, fetch_for_job
from gpudev.cli.options import DURATION, DURATION_FORMS, ID, api_options, is_id, parse_hours
from gpudev.domain.reservations.lifecycle import LIVE, Status
from gpudev.sdk.errors import ClientError, Forbidden, Unreachable
from gpudev.sdk.http.endpoints import cancel_job, extend_job, prioritise_job
from gpudev.sdk.http.event_stream import has_ended
from gpudev.wire.reservations import ExtendRequest, JobView, PriorityRequest

_MAX_JOBS = 10_000


@click.command()
@click.argument("job_ids", metavar="[ID]...", type=ID, nargs=-1)
@click.option("--all", "every", is_flag=True, help="All your live reservations.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@api_options
def cancel(job_ids: tuple[str, ...], every: bool, yes: bool, as_json: bool, api_url: str | None) -> None:
    """Cancel reservations. Their processes end; disks are kept. With --json, prints one response per line.

    ID is an id, a prefix of one, or a name.

    \b
    gpu-dev cancel 3f2a9c1e
    gpu-dev cancel training eval
    gpu-dev cancel --all --yes
    """
    if bool(job_ids) is every:
        raise usage_error("give reservation ids or names, or --all", "`gpu-dev list` shows them")
    session = CommandSession(api_url)
    may_ask = not yes and not as_json and output.can_ask()
    if every and not yes and not may_ask:
        raise usage_error("--all requires --yes without a terminal")
    failures: list[ClientError] = []
    jobs = _list_live_jobs(session) if every else _find_jobs(session, job_ids, failures, may_ask=may_ask)
    if every and not jobs:
        if not as_json:
            output.write_line("You have no live reservations.")
        return
    live = [job for job in jobs if not has_ended(job)]
    if live and may_ask and not _confirmed(live):
        output.write_line("Nothing was cancelled.")
        return
    _cancel_each(session, jobs, failures, as_json=as_json)


def _list_live_jobs(session: CommandSession) -> list[JobView]:
    return list_all_jobs(session.api, {"status": sorted(LIVE)}, _MAX_JOBS).value.jobs


def _find_jobs(
    session: CommandSession, texts: tuple[str, ...], failures: list[ClientError], *, may_ask: bool
) -> list[JobView]:
    """Those that exist; the errors of the others are added to `failures`."""
    found: dict[str, JobView] = {}
    for text in texts:
        try:
            job = choose_job(session, text, may_ask=may_ask).value
            found[job.reservation_id] = job
        except ClientError as error:
            failures.append(error)
    return list(found.values())


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


def _cancel_each(session: CommandSession, jobs: list[JobView], failures: list[ClientError], *, as_json: bool) -> None:
    """Cancel all, whatever fails; the first failure decides the exit code."""
    for job in jobs:
        try:
            reply = session.api.fetch(cancel_job(job.reservation_id))
        except ClientError as error:
            failures.append(_ended_error(job) if has_ended(job) else error)
            continue
        ssh_config.remove_reservations(session.env, {job.reservation_id})
        if as_json:
            output.write_json(reply.raw)
        elif has_ended(job):
            output.write_line(output.clean(f"Nothing to cancel: {_describe_ended(job)}."))
        else:
            output.write_line(f"Cancelled: {formatting.short_id(job.reservation_id)} ({formatting.hardware(job)}).")
    for further in failures[1:]:
        write_error(further, as_json=as_json)
    if failures:
        raise failures[0]


def _ended_error(job: JobView) -> CliError:
    return CliError(ExitCode.REJECTED, _describe_ended(job), code="conflict")


def _describe_ended(job: JobView) -> str:
    ended = job.reservation_ended or job.cancelled_at or job.expires_at
    when = f" at {formatting.local_time(ended, formatting.utc_now())}" if ended else ""
    return f"reservation {formatting.short_id(job.reservation_id)} ended already{when} ({formatting.outcome(job)})"


@click.command()
@click.argument("arguments", metavar="[ID] [TIME]", nargs=-1, type=ID)
@click.option("--hours", "-H", type=DURATION, help="Time to add, e.g. 2h; the same as TIME.")
@api_options
def extend(arguments: tuple[str, ...], hours: float | None, as_json: bool, api_url: str | None) -> None:
    """Extend an active reservation.

    ID is an id, a prefix of one, or a name; it may be omitted if you have only one reservation. TIME is 2h, 90m or
    1h30; a number alone means hours.

    \b
    gpu-dev extend 2h
    gpu-dev extend 3f2a9c1e 90m
    gpu-dev extend training --hours 1
    """
    text, added = _split_id_and_time(arguments, hours)
    session = CommandSession(api_url)
    if text is None:
        text = choose_job(session, None, may_ask=not as_json).value.reservation_id
    try:
        reply = fetch_for_job(
            session,
            text,
            lambda job_id: extend_job(job_id, ExtendRequest(extension_hours=added)),
            may_ask=not as_json,
        )
    except Unreachable as error:
        if error.sent:
            shown = formatting.short_id(text) if is_id(text) else text
            step = f"It may have been extended; `gpu-dev status {shlex.quote(shown)}` shows it"
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


def _split_id_and_time(arguments: tuple[str, ...], hours: float | None) -> tuple[str | None, float]:
    """A single argument is a time if it can be one and is no id."""
    step = "gpu-dev extend 3f2a9c1e 2h"
    if len(arguments) > (2 if hours is None else 1):
        raise usage_error("too many arguments (expected an id and a time)", step)
    if hours is not None:
        return (arguments[0] if arguments else None), hours
    *before, last = arguments or ("",)
    added = parse_hours(last)
    if not last or (not before and (added is None or is_id(last))):
        raise usage_error("give the time to add", step)
    if added is None:
        raise usage_error(f"invalid duration {last[:80]!r} (expected {DURATION_FORMS})")
    return (before[0] if before else None), added


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
        reply = fetch_for_job(
            CommandSession(api_url),
            job_id,
            lambda found: prioritise_job(found, PriorityRequest(priority=number)),
            may_ask=not as_json,
        )
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
