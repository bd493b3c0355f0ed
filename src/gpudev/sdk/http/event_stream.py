"""One reservation as it changes: a stream of news, kept alive.

When the API's event stream breaks, the reservation is asked for plainly and the stream opened again where it broke,
with growing pauses. It does not know what the news mean.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from gpudev.domain.reservations.lifecycle import TERMINAL, Status
from gpudev.sdk.errors import NotInTime, Unavailable, Unreachable, UsageError
from gpudev.sdk.http.api_client import ApiClient
from gpudev.sdk.http.endpoints import ApiReply, get_job
from gpudev.sdk.http.routines import CloseStream, Notify, Pause, ReadLine, Routine
from gpudev.sdk.http.transport import SILENCE_SECONDS, LineStream
from gpudev.wire import codec
from gpudev.wire.reservations import JobEvent, JobView

# Server-sent events: lines in, events out. Pure.


class ServerSentEvent(NamedTuple):
    kind: str
    data: bytes
    last_id: str | None
    """What to name when asking for what comes after; it stays until the server names another."""


class EventParser:
    """One stream's lines, as they come. An event that was not finished by an empty line is none."""

    def __init__(self, last_id: str | None = None) -> None:
        self._last_id = last_id
        self._kind = "message"
        self._data: list[bytes] = []

    def feed(self, line: bytes) -> ServerSentEvent | None:
        """The event that this line finishes."""
        text = line.rstrip(b"\r\n")
        if not text:
            event = ServerSentEvent(self._kind, b"\n".join(self._data), self._last_id) if self._data else None
            self._kind, self._data = "message", []
            return event
        name, _, value = text.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._kind = value.decode("utf-8", "replace")
        elif name == b"id" and b"\0" not in value:
            self._last_id = value.decode("utf-8", "replace")
        return None


def parse_events(lines: Iterable[bytes], last_id: str | None = None) -> Iterator[ServerSentEvent]:
    parser = EventParser(last_id)
    for line in lines:
        event = parser.feed(line)
        if event is not None:
            yield event


# Where a reservation stands, for whoever waits for it.


def has_ended(job: JobView) -> bool:
    """A status a newer server may have invented counts as one that goes on."""
    return job.status in TERMINAL


def is_settled(job: JobView) -> bool:
    """Ready, or over: nothing is left to be waited for."""
    return job.status == Status.ACTIVE or has_ended(job)


_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 10.0
_PATIENCE_VARIABLE = "GPU_DEV_PATIENCE_SECONDS"
_DEFAULT_PATIENCE = 300.0


class JobUpdate(NamedTuple):
    """The reservation as it is now."""

    reply: ApiReply[JobView]


class ConnectionLost(NamedTuple):
    """The API does not answer at the moment; we keep trying."""

    why: str


WatchEvent = JobUpdate | ConnectionLost


class JobWatch:
    def __init__(
        self,
        core: ApiClient,
        job_id: str,
        *,
        patience: float,
        deadline: float | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`patience`: seconds that the API may stay away. `deadline`: when, by `now`, there is no more waiting."""
        self._core = core
        self._job_id = job_id
        self._patience = patience
        self._deadline = deadline
        self._now = now
        self._stream: LineStream | None = None
        self._parser = EventParser()
        self._last_event_id: str | None = None
        self._last_received_at = now()
        self._received_before_open = self._last_received_at
        self._pause = _FIRST_PAUSE
        self._polls_first = False
        """The stream broke: ask plainly before it is opened again."""

    def next(self) -> Routine[WatchEvent]:
        """Raises when nothing more will come: the API stayed away for too long, or said no."""
        while True:
            try:
                if self._polls_first:
                    return (yield from self._poll())
                seen = yield from self._read_stream()
                if seen is not None:
                    return seen
            except Unavailable as error:
                yield from self.close()
                if self._now() - self._last_received_at >= self._patience:
                    raise
                return ConnectionLost(error.message)

    def close(self) -> Routine[None]:
        stream, self._stream = self._stream, None
        if stream is not None:
            yield CloseStream(stream)

    def _read_stream(self) -> Routine[JobUpdate | None]:
        """None: the stream has come to its end."""
        self._polls_first = True
        if self._stream is None:
            self._received_before_open = self._last_received_at
            self._stream = yield from self._core.open_events(self._job_id, self._last_event_id)
            self._parser = EventParser(self._last_event_id)
        while (line := (yield from self._next_line(self._stream))) is not None:
            event = self._parser.feed(line)
            if event is None:
                continue
            self._last_event_id = event.last_id
            if event.kind == "job":
                self._polls_first = False
                return self._received(_read_job(event.data))
        yield from self.close()
        return None

    def _next_line(self, stream: LineStream) -> Routine[bytes | None]:
        left = self._time_left()
        try:
            line: bytes | None = yield ReadLine(stream, left)
        except Unreachable:
            self._time_left()  # silent, because we would wait no longer?
            raise
        return line

    def _poll(self) -> Routine[JobUpdate]:
        heard = self._last_received_at > self._received_before_open
        self._pause = _FIRST_PAUSE if heard else min(self._pause * 2, _LONGEST_PAUSE)
        left = self._time_left()
        yield Pause(self._pause if left is None else min(self._pause, left))
        self._polls_first = False
        return self._received((yield from self._core.fetch(get_job(self._job_id))))

    def _received(self, reply: ApiReply[JobView]) -> JobUpdate:
        self._last_received_at = self._now()
        return JobUpdate(reply)

    def _time_left(self) -> float | None:
        """Seconds; None: as many as it takes."""
        if self._deadline is None:
            return None
        left = self._deadline - self._now()
        if left <= 0:
            raise NotInTime(f"reservation {self._job_id} was not ready in time")
        return left


def wait_until_ready(
    watch: JobWatch, first: JobView, on_change: Callable[[JobView], object] | None = None
) -> Routine[JobView]:
    """The reservation once it is active or has ended; `on_change` is told of everything on the way."""
    job = first
    try:
        while True:
            if on_change is not None:
                yield Notify(on_change, job)
            if is_settled(job):
                return job
            while not isinstance(news := (yield from watch.next()), JobUpdate):
                pass
            job = news.reply.value
    finally:
        yield from watch.close()


def read_patience(env: Mapping[str, str] = os.environ) -> float:
    """How long an API that does not answer is waited for."""
    try:
        return max(0.0, float(env.get(_PATIENCE_VARIABLE) or _DEFAULT_PATIENCE))
    except ValueError as error:
        raise UsageError(f"{_PATIENCE_VARIABLE} is no number of seconds") from error


def _read_job(data: bytes) -> ApiReply[JobView]:
    try:
        return ApiReply(data, codec.decode_model(JobView, json.loads(data)))
    except ValueError as error:
        raise Unavailable(f"the API's stream could not be read ({error})") from error


# A reservation's history, read from its stream of events.
#
# One that is followed ends with its reservation. Its stream may end before: an API that restarts ends it properly, what
# is between cuts it, or answers in the API's stead for a while. Then it is taken up again, with growing pauses.


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
        self._parser = EventParser()
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
            self._parser = EventParser(self._last_event_id)
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
