"""A reservation's history, read from its stream of events."""

import json

from gpudev.sdk import sse
from gpudev.sdk.core import Core
from gpudev.sdk.effects import Close, NextLine, Routine
from gpudev.sdk.errors import Unavailable, Unreachable
from gpudev.sdk.standing import has_ended
from gpudev.sdk.transport import SILENCE_SECONDS, Stream
from gpudev.wire import codec
from gpudev.wire.jobs import JobEvent, JobView

_SILENCE_SECONDS = 2.0
"""A live reservation's stream does not end. Its history is whole with the line of the version we know of; for one
whose last change left no line, it is whole when nothing more is said."""
_MOST_LOSSES = 3


class History:
    """What happened until now; with `follow`, also what happens until the reservation has ended. A stream that is cut
    is taken up again only then."""

    def __init__(self, core: Core, job: JobView, *, follow: bool) -> None:
        self._core = core
        self._job = job
        self._follow = follow
        self._silence = SILENCE_SECONDS if follow else _SILENCE_SECONDS
        self._stream: Stream | None = None
        self._parser = sse.Parser()
        self._last: str | None = None
        self._lost = 0
        self._is_whole = False

    def next(self) -> Routine[JobEvent | None]:
        """None: that was all."""
        while not self._is_whole:
            try:
                event = yield from self._next_event()
            except Unreachable as error:
                yield from self.close()
                if not self._may_go_on(error):
                    raise
            else:
                self._note(event)
                if event is None:
                    break
                return event
        yield from self.close()
        return None

    def close(self) -> Routine[None]:
        stream, self._stream = self._stream, None
        if stream is not None:
            yield Close(stream)

    def _may_go_on(self, error: Unreachable) -> bool:
        self._lost += 1
        if self._follow:
            return self._lost <= _MOST_LOSSES
        self._is_whole = isinstance(error.__cause__, TimeoutError)  # silent; one that is cut may not be all of it
        return self._is_whole

    def _note(self, event: JobEvent | None) -> None:
        if event is None:
            self._is_whole = True
            return
        self._last, self._lost = str(event.event_id), 0
        if not self._follow and event.version >= self._job.version and not has_ended(self._job):
            self._is_whole = True

    def _next_event(self) -> Routine[JobEvent | None]:
        if self._stream is None:
            self._stream = yield from self._core.open_events(
                self._job.reservation_id, self._last, silence=self._silence
            )
            self._parser = sse.Parser(self._last)
        while True:
            line: bytes | None = yield NextLine(self._stream, None)
            if line is None:
                return None
            event = self._parser.feed(line)
            if event is not None and event.kind == "event":
                return _read_event(event.data)


def read(core: Core, job: JobView) -> Routine[list[JobEvent]]:
    """What happened until now."""
    history = History(core, job, follow=False)
    events: list[JobEvent] = []
    try:
        while (event := (yield from history.next())) is not None:
            events.append(event)
    finally:
        yield from history.close()
    return events


def _read_event(data: bytes) -> JobEvent:
    try:
        return codec.read(JobEvent, json.loads(data))
    except ValueError as error:
        raise Unavailable(f"the API's history could not be read ({error})") from error
