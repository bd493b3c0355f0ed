"""Reading and formatting of a reservation's history."""

from collections.abc import Iterator

from gpudev.cli import formatting, output
from gpudev.cli.command_session import CommandSession
from gpudev.sdk.http import event_stream
from gpudev.sdk.http.event_stream import read_patience
from gpudev.wire.reservations import JobEvent, JobView


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
    label = f"{formatting.local_time(event.at, formatting.utc_now())}  {output.clean(event.kind):<10}  "
    first, *others = event.message.split("\n")  # log lines may follow; they are not wrapped
    quoted = (" " * len(label) + output.clean(line) for line in others)
    return "\n".join((output.indent_below_label(label, output.clean(first), len(label)), *quoted))
