"""A reservation's history, read from its stream of events."""

import json
from collections.abc import Iterator

from gpudev.cli import output, sse, wording
from gpudev.cli.exits import CliError, Exit
from gpudev.cli.session import Session
from gpudev.cli.transport import SILENCE_SECONDS, Unreachable
from gpudev.wire import codec
from gpudev.wire.jobs import JobEvent, JobView

_SILENCE_SECONDS = 2.0
"""A live reservation's stream does not end. Its history is whole with the line of the version we know of; for one
whose last change left no line, it is whole when nothing more is said."""


def read(session: Session, job: JobView) -> list[JobEvent]:
    """What happened until now."""
    events: list[JobEvent] = []
    try:
        for event in _stream(session, job, None, _SILENCE_SECONDS):
            events.append(event)
            if event.version >= job.version and not wording.has_ended(job):
                break
    except Unreachable as error:
        if not isinstance(error.__cause__, TimeoutError):  # cut, and not silent: it may not have been all of it
            raise
    return events


def follow(session: Session, job: JobView) -> Iterator[JobEvent]:
    """What happened, and what happens until the reservation has ended. A stream that is cut is taken up again."""
    last: str | None = None
    lost = 0
    while True:
        try:
            for event in _stream(session, job, last, SILENCE_SECONDS):
                last, lost = str(event.event_id), 0
                yield event
            return
        except Unreachable:
            lost += 1
            if lost > 3:
                raise


def told(event: JobEvent) -> str:
    label = f"{wording.local_time(event.at, wording.utc_now())}  {output.clean(event.kind):<10}  "
    return output.hang(label, output.clean(event.message), len(label))


def _stream(session: Session, job: JobView, last: str | None, silence: float) -> Iterator[JobEvent]:
    stream = session.api.events(job.reservation_id, last, silence=silence)
    try:
        for event in sse.parse(stream.lines(), last):
            if event.kind == "event":
                yield codec.read(JobEvent, json.loads(event.data))
    except ValueError as error:
        raise CliError(Exit.UNREACHABLE, f"the API's history could not be read ({error})") from error
    finally:
        stream.close()
