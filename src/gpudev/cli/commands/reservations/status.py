"""`gpu-dev status`, and the history of a reservation, which `logs` shows too."""

import json
from collections.abc import Iterator
from datetime import datetime

import click

from gpudev.cli import formatting, output
from gpudev.cli.command_session import CommandSession
from gpudev.cli.job_selection import choose_job
from gpudev.cli.options import ID, api_options
from gpudev.domain.reservations.lifecycle import Status
from gpudev.sdk.http import event_stream
from gpudev.sdk.http.event_stream import has_ended, read_patience
from gpudev.wire import codec
from gpudev.wire.reservations import JobEvent, JobView

_LABEL = 13


@click.command()
@click.argument("job_id", metavar="[ID]", type=ID, required=False)
@click.option("--events", "with_events", is_flag=True, help="Include the history.")
@api_options
def status(job_id: str | None, with_events: bool, as_json: bool, api_url: str | None) -> None:
    """Show one reservation in full.

    ID is an id, a prefix of one, or a name; it may be omitted if you have only one reservation.

    \b
    gpu-dev status
    gpu-dev status training --events
    """
    session = CommandSession(api_url)
    reply = choose_job(session, job_id, may_ask=not as_json)
    history = read_history(session, reply.value) if with_events else []
    if as_json:
        output.write_json(_with_events(reply.raw, history) if with_events else reply.raw)
        return
    for name, text in _facts(reply.value, ssh_line=_find_ssh_line(session, reply.value)):
        output.write_line(output.indent_below_label(f"{name:<{_LABEL}}", output.clean(text), _LABEL))
    if end := formatting.expiry_warning(reply.value, formatting.utc_now()):
        output.write_line(output.paint(output.clean(f"Reservation {end}."), "yellow"))
    if history:
        output.write_line()
    for event in history:
        output.write_line(format_event(event))


def _find_ssh_line(session: CommandSession, job: JobView) -> str:
    if not job.ssh_command:
        return ""
    from gpudev.cli.commands.sessions import ssh_config  # only needed here

    return ssh_config.ssh_line(session.env, job)


def _facts(job: JobView, *, ssh_line: str) -> list[tuple[str, str]]:
    now = formatting.utc_now()
    short = formatting.short_id(job.reservation_id)
    waiting = job.status in (Status.PENDING, Status.QUEUED)
    active = job.status == Status.ACTIVE
    ended = job.reservation_ended
    facts = [
        ("Reservation", f"{job.reservation_id}{f'  ({job.name})' if job.name else ''}"),
        ("Status", job.status),
        ("Outcome", job.outcome if job.outcome and job.outcome != job.status else ""),
        ("Command", job.command or ""),
        ("Hardware", formatting.hardware(job)),
        ("Duration", formatting.format_duration(job.duration_hours * 3600)),
        ("Created", formatting.local_time(job.created_at, now)),
        ("Priority", str(job.priority) if job.priority else ""),
        ("Position", str(job.queue_position) if waiting and job.queue_position is not None else ""),
        *(_start_facts(job, now) if waiting else ()),
        ("Because", job.wait_reason or ""),
        ("Waits until", formatting.local_time(job.wait_until, now) if waiting and job.wait_until else ""),
        ("Step", job.step or ""),
        ("Started", formatting.local_time(job.launched_at, now) if job.launched_at else ""),
        ("Expires", formatting.time_remaining(job, now).removeprefix("ends ") if active else ""),
        ("Ended", formatting.local_time(ended, now) if ended else ""),
        ("Ran", formatting.time_used(job, now) if ended and job.launched_at else ""),
        ("Reason", job.failure_reason or ""),
        ("Released", _format_released(job)),
        ("Nodes", ", ".join(node.node for node in job.nodes)),
        ("In use", formatting.gpu_use(job)),
        ("Disk", job.disk_name or ""),
        ("Set-up", job.setup_outcome or ""),
        ("Image", job.image or ""),
        ("SSH", ssh_line),
        ("Users", ", ".join(job.users or ())),
        ("Jupyter", _format_jupyter(job.jupyter, short)),
        ("Connect", f"gpu-dev connect {short}" if active else ""),
        ("Note", job.warning or ""),
    ]
    return [(name, text) for name, text in facts if text]


def _start_facts(job: JobView, now: datetime) -> list[tuple[str, str]]:
    if job.eta is None:
        return [("Estimate", formatting.start_estimate(job, now))]
    expected, latest = job.eta.expected, job.eta.latest
    left = (latest - now).total_seconds()
    guaranteed = formatting.guaranteed_start(latest, now).removeprefix("at the latest ")
    facts = [
        (
            "Latest",
            f"{guaranteed} (in {formatting.format_duration(left)}), if nobody leaves early" if left > 0 else guaranteed,
        )
    ]
    if expected is None:
        return facts
    likely = formatting.likely_interval(job.eta, now)
    interval = f" ({formatting.format_percent(job.eta.confidence)}: {likely})" if likely else ""
    when = f"{formatting.in_about(expected, now)}, {formatting.local_time(expected, now)}{interval}"
    return [("Expected", when), *facts]


def _format_jupyter(state: str | None, short: str) -> str:
    if state is None:
        return ""
    return f"{state}, gpu-dev jupyter {'status' if state == 'failed' else 'open'} {short}"


def _format_released(job: JobView) -> str:
    if not has_ended(job):
        return ""
    return (
        formatting.local_time(job.released_at, formatting.utc_now())
        if job.released_at
        else "not yet, teardown in progress"
    )


def _with_events(raw: bytes, history: list[JobEvent]) -> bytes:
    return json.dumps({**json.loads(raw), "events": codec.encode_model(history)}).encode()


def read_history(session: CommandSession, job: JobView) -> list[JobEvent]:
    """The events until now."""
    return session.api.run(event_stream.read_history(session.api.client, job))


def follow_history(session: CommandSession, job: JobView) -> Iterator[JobEvent]:
    """All events until the reservation has ended. A broken stream is reconnected."""
    history = event_stream.JobHistory(session.api.client, job, follow=True, patience=read_patience())
    try:
        while (event := session.api.run(history.next())) is not None:
            yield event
    finally:
        session.api.run(history.close())


def format_event(event: JobEvent) -> str:
    now = formatting.utc_now()
    label = f"{formatting.local_time(event.at, now)}  {output.clean(event.kind):<10}  "
    # Log lines may follow; they are not wrapped.
    first, *others = formatting.in_own_zone(event.message, event.times, now).split("\n")
    quoted = (" " * len(label) + output.clean(line) for line in others)
    return "\n".join((output.indent_below_label(label, output.clean(first), len(label)), *quoted))
