"""A reservation's history, told."""

from collections.abc import Iterator

from gpudev.cli import formatting, output
from gpudev.cli.command_session import Session
from gpudev.sdk import histories
from gpudev.sdk.http.event_stream import patience
from gpudev.wire.reservations import JobEvent, JobView


def read(session: Session, job: JobView) -> list[JobEvent]:
    """What happened until now."""
    return session.api.run(histories.read(session.api.core, job))


def follow(session: Session, job: JobView) -> Iterator[JobEvent]:
    """What happened, and what happens until the reservation has ended. A stream that is cut is taken up again."""
    history = histories.History(session.api.core, job, follow=True, patience=patience())
    try:
        while (event := session.api.run(history.next())) is not None:
            yield event
    finally:
        session.api.run(history.close())


def told(event: JobEvent) -> str:
    label = f"{formatting.local_time(event.at, formatting.utc_now())}  {output.clean(event.kind):<10}  "
    first, *others = event.message.split("\n")  # log lines may follow, to be shown as they were
    quoted = (" " * len(label) + output.clean(line) for line in others)
    return "\n".join((output.hang(label, output.clean(first), len(label)), *quoted))
