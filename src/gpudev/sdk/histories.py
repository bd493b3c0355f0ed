"""A reservation's history, read from its stream of events.

One that is followed ends with its reservation. Its stream may end before: an API that restarts ends it properly, what
is between cuts it, or answers in the API's stead for a while. Then it is taken up again, with growing pauses.
"""

import json
from typing import TypeVar

from gpudev.sdk import sse
from gpudev.sdk.effects import CloseStream, Pause, ReadLine, Routine
from gpudev.sdk.errors import Unavailable, Unreachable
from gpudev.sdk.http.api_client import ApiClient
from gpudev.sdk.http.transport import SILENCE_SECONDS, LineStream
from gpudev.sdk.standing import has_ended
from gpudev.wire import codec
from gpudev.wire.reservations import JobEvent, JobView

_T = TypeVar("_T", JobEvent, JobView)
_COMPLETE_AFTER_SECONDS = 2.0
"""A live reservation's stream does not end. Its history is whole with the line of the version we know of; for one
whose last change left no line, it is whole when nothing more is said."""
_FIRST_HISTORY_PAUSE, _LONGEST_HISTORY_PAUSE = 0.25, 10.0
_HISTORY_PATIENCE = 300.0


class JobHistory:
    """What happened until now; with `follow`, also what happens until the reservation has ended."""

    def __init__(self, core: ApiClient, job: JobView, *, follow: bool, patience: float = _HISTORY_PATIENCE) -> None:
        """`patience`: seconds that the API may stay away from whoever follows."""
        self._core = core
        self._job = job
        self._follow = follow
        self._patience = patience
        self._silence = SILENCE_SECONDS if follow else _COMPLETE_AFTER_SECONDS
        self._stream: LineStream | None = None
        self._parser = sse.EventParser()
        self._last_event_id: str | None = None
        self._pause, self._paused = _FIRST_HISTORY_PAUSE, 0.0
        self._is_complete = False

    def next(self) -> Routine[JobEvent | None]:
        """None: that was all."""
        while not self._is_complete:
            try:
                event = yield from self._next_event()
            except Unavailable as error:
                yield from self.close()
                yield from self._wait_or_raise(error)
                continue
            if event is not None:
                self._record_event(event)
                return event
            yield from self.close()
            if self._follow and not has_ended(self._job):
                yield from self._wait_or_raise(Unavailable("the API ended its stream of events"))
            else:
                self._is_complete = True
        yield from self.close()
        return None

    def close(self) -> Routine[None]:
        stream, self._stream = self._stream, None
        if stream is not None:
            yield CloseStream(stream)

    def _wait_or_raise(self, error: Unavailable) -> Routine[None]:
        """Raises the error where it does not pass, or was waited for long enough."""
        if not self._follow:
            # Silent; one that is cut may not be all of it.
            self._is_complete = isinstance(error, Unreachable) and isinstance(error.__cause__, TimeoutError)
            if not self._is_complete:
                raise error
            return
        if self._paused >= self._patience or (isinstance(error, Unreachable) and error.final):
            raise error
        yield Pause(self._pause)
        self._paused += self._pause
        self._pause = min(2 * self._pause, _LONGEST_HISTORY_PAUSE)

    def _record_event(self, event: JobEvent) -> None:
        self._last_event_id = str(event.event_id)
        if not self._follow and event.version >= self._job.version and not has_ended(self._job):
            self._is_complete = True

    def _next_event(self) -> Routine[JobEvent | None]:
        """None: the stream has come to its end."""
        if self._stream is None:
            self._stream = yield from self._core.open_events(
                self._job.reservation_id, self._last_event_id, silence=self._silence
            )
            self._parser = sse.EventParser(self._last_event_id)
        while True:
            line: bytes | None = yield ReadLine(self._stream, None)
            if line is None:
                return None
            self._pause, self._paused = _FIRST_HISTORY_PAUSE, 0.0
            event = self._parser.feed(line)
            if event is None:
                continue
            if event.kind == "event":
                return _decode(JobEvent, event.data)
            if event.kind == "job" and self._follow:
                self._job = _decode(JobView, event.data)


def read_history(core: ApiClient, job: JobView) -> Routine[list[JobEvent]]:
    """What happened until now."""
    history = JobHistory(core, job, follow=False)
    events: list[JobEvent] = []
    try:
        while (event := (yield from history.next())) is not None:
            events.append(event)
    finally:
        yield from history.close()
    return events


def _decode(model: type[_T], data: bytes) -> _T:
    try:
        return codec.decode_model(model, json.loads(data))
    except ValueError as error:
        # It would say the same again.
        raise Unreachable(f"the API's history could not be read ({error})", sent=True, final=True) from error
