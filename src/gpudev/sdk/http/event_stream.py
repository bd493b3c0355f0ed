"""The event stream of one reservation, with reconnects: its states (`JobWatch`) and history (`JobHistory`)."""

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from gpudev.domain.reservations.lifecycle import TERMINAL, Status
from gpudev.sdk.errors import NotInTime, ReservationEnded, Unavailable, Unreachable, UsageError
from gpudev.sdk.http.api_client import ApiClient
from gpudev.sdk.http.endpoints import ApiReply, get_job
from gpudev.sdk.http.routines import CloseStream, Notify, Pause, ReadLine, Routine
from gpudev.sdk.http.transport import SILENCE_SECONDS, LineStream
from gpudev.wire import codec
from gpudev.wire.reservations import JobEvent, JobView

# Server-sent events. Pure.


class ServerSentEvent(NamedTuple):
    kind: str
    data: bytes
    last_id: str | None
    """For `Last-Event-ID` on reconnect; kept until the server sends another."""


class EventParser:
    """Parses the lines of one stream. An event that is not terminated by an empty line is dropped."""

    def __init__(self, last_id: str | None = None) -> None:
        self._last_id = last_id
        self._kind = "message"
        self._data: list[bytes] = []

    def feed(self, line: bytes) -> ServerSentEvent | None:
        """The event that this line completes."""
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


# States of a reservation that a waiting client distinguishes.


def has_ended(job: JobView) -> bool:
    """An unknown status of a newer server counts as live."""
    return job.status in TERMINAL


def is_settled(job: JobView) -> bool:
    """Active or ended: nothing left to wait for."""
    return job.status == Status.ACTIVE or has_ended(job)


def check_ready(job: JobView, why: str | None = None, next_step: str = "") -> JobView:
    """Raises ReservationEnded if it has ended. `why` replaces the default message."""
    if has_ended(job):
        reason = f": {job.failure_reason}" if job.failure_reason else ""
        raise ReservationEnded(
            why or f"reservation {job.reservation_id} is {job.status}{reason}", next_step, code=job.status
        )
    return job


_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 10.0
_PATIENCE_VARIABLE = "GPU_DEV_PATIENCE_SECONDS"
_DEFAULT_PATIENCE = 300.0
_Item = TypeVar("_Item")


class ReconnectingStream(Generic[_Item]):
    """An event stream that reconnects after the last event received, with growing pauses."""

    def __init__(self, client: ApiClient, job_id: str, *, silence: float = SILENCE_SECONDS) -> None:
        self._client = client
        self._job_id = job_id
        self._silence = silence
        self._stream: LineStream | None = None
        self._parser = EventParser()
        self._last_event_id: str | None = None
        self._next_pause, self._paused = _FIRST_PAUSE, 0.0
        """`_paused`: total seconds of pauses since the API last sent something."""
        self._is_complete = False

    def next(self) -> Routine[_Item | None]:
        """None: complete. Raises if the API does not respond for too long, or rejects the request."""
        while not self._is_complete:
            try:
                item = yield from self._next_item()
            except Unavailable as error:
                yield from self.close()
                item = self._on_broken(error)
                if item is None and not self._is_complete:
                    yield from self._wait()
            if item is not None:
                return item
        yield from self.close()
        return None

    def close(self) -> Routine[None]:
        stream, self._stream = self._stream, None
        if stream is not None:
            yield CloseStream(stream)

    def _next_item(self) -> Routine[_Item | None]:
        """None: no item yet, or the stream is complete."""
        raise NotImplementedError

    def _on_broken(self, error: Unavailable) -> _Item | None:
        """The item to return for it; None: reconnect after a pause. Raises the error if a reconnect is useless."""
        raise NotImplementedError

    def _time_left(self) -> float | None:
        """Seconds; None: unlimited."""
        return None

    def _next_event(self) -> Routine[ServerSentEvent | None]:
        """None: the API ended the stream."""
        if self._stream is None:
            self._stream = yield from self._client.open_events(self._job_id, self._last_event_id, silence=self._silence)
            self._parser = EventParser(self._last_event_id)
        while True:
            line: bytes | None = yield ReadLine(self._stream, self._time_left())
            if line is None:
                yield from self.close()
                return None
            self._next_pause, self._paused = _FIRST_PAUSE, 0.0
            event = self._parser.feed(line)
            if event is not None:
                self._last_event_id = event.last_id
                return event

    def _wait(self) -> Routine[None]:
        left = self._time_left()
        yield Pause(self._next_pause if left is None else min(self._next_pause, left))
        self._paused += self._next_pause
        self._next_pause = min(2 * self._next_pause, _LONGEST_PAUSE)


class JobUpdate(NamedTuple):
    """The current state of the reservation."""

    reply: ApiReply[JobView]


class ConnectionLost(NamedTuple):
    """The API does not respond; the watch keeps trying."""

    why: str


WatchEvent = JobUpdate | ConnectionLost


class JobWatch(ReconnectingStream[WatchEvent]):
    """The states of one reservation. After a broken stream it fetches the reservation once, then reconnects. It never
    ends by itself."""

    def __init__(
        self,
        client: ApiClient,
        job_id: str,
        *,
        patience: float,
        known_version: int = 0,
        deadline: float | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`patience`: seconds without a response until it gives up. `known_version`: states before it are skipped; a
        stream may begin with one. `deadline`: end of the wait, by the clock `now`."""
        super().__init__(client, job_id)
        self._patience = patience
        self._known_version = known_version
        self._deadline = deadline
        self._now = now
        self._last_received_at = now()
        self._polls_first = False
        self._next_pause = 2 * _FIRST_PAUSE  # until the first response

    def _next_item(self) -> Routine[WatchEvent | None]:
        if self._polls_first:
            yield from self._wait()
            self._polls_first = False
            return self._received((yield from self._client.fetch(get_job(self._job_id))))
        self._polls_first = True
        while (event := (yield from self._next_event())) is not None:
            if event.kind == "job":
                self._polls_first = False
                update = self._received(_read_job(event.data))
                if update.reply.value.version >= self._known_version:
                    return update
        return None

    def _on_broken(self, error: Unavailable) -> WatchEvent:
        self._time_left()  # raises NotInTime if the deadline caused the silence
        if self._now() - self._last_received_at >= self._patience:
            raise error
        return ConnectionLost(error.message)

    def _received(self, reply: ApiReply[JobView]) -> JobUpdate:
        self._last_received_at = self._now()
        self._known_version = max(self._known_version, reply.value.version)
        return JobUpdate(reply)

    def _time_left(self) -> float | None:
        if self._deadline is None:
            return None
        left = self._deadline - self._now()
        if left <= 0:
            raise NotInTime(f"reservation {self._job_id} was not ready in time")
        return left


def wait_until_ready(
    watch: JobWatch, first: JobView, on_change: Callable[[JobView], object] | None = None
) -> Routine[JobView]:
    """The reservation once it is active or has ended. Calls `on_change` for each state until then."""
    job = first
    try:
        while True:
            if on_change is not None:
                yield Notify(on_change, job)
            if is_settled(job):
                return job
            while not isinstance(event := (yield from watch.next()), JobUpdate):
                pass
            job = event.reply.value
    finally:
        yield from watch.close()


def read_patience(env: Mapping[str, str] = os.environ) -> float:
    """Seconds to wait for an API that does not respond."""
    try:
        return max(0.0, float(env.get(_PATIENCE_VARIABLE) or _DEFAULT_PATIENCE))
    except ValueError as error:
        raise UsageError(f"invalid {_PATIENCE_VARIABLE} (expected a number of seconds)") from error


def _read_job(data: bytes) -> ApiReply[JobView]:
    try:
        return ApiReply(data, codec.decode_model(JobView, json.loads(data)))
    except ValueError as error:
        raise Unavailable(f"invalid data in the API's event stream ({error})") from error


# A reservation's history from its event stream.
#
# A followed history ends with its reservation. The stream may end earlier, if the API restarts or a proxy in between
# cuts it or sends its own error.


_T = TypeVar("_T", JobEvent, JobView)
_COMPLETE_AFTER_SECONDS = 2.0
"""The stream of a live reservation does not end. Its history is complete with the event of the known version; if the
last change has no event, after this much silence."""


class JobHistory(ReconnectingStream[JobEvent]):
    """The events until now; with `follow`, until the reservation has ended."""

    def __init__(self, client: ApiClient, job: JobView, *, follow: bool, patience: float = _DEFAULT_PATIENCE) -> None:
        """`patience`: with `follow`, seconds without a response until it gives up."""
        silence = SILENCE_SECONDS if follow else _COMPLETE_AFTER_SECONDS
        super().__init__(client, job.reservation_id, silence=silence)
        self._job = job
        self._follow = follow
        self._patience = patience

    def _next_item(self) -> Routine[JobEvent | None]:
        while (received := (yield from self._next_event())) is not None:
            if received.kind == "event":
                event = _decode(JobEvent, received.data)
                is_last = event.version >= self._job.version and not has_ended(self._job)
                self._is_complete = is_last and not self._follow
                return event
            if received.kind == "job" and self._follow:
                self._job = _decode(JobView, received.data)
        if self._follow and not has_ended(self._job):
            raise Unavailable("the API ended its stream of events")
        self._is_complete = True
        return None

    def _on_broken(self, error: Unavailable) -> None:
        if not self._follow:
            # Silence means complete; a broken stream may be incomplete.
            self._is_complete = isinstance(error, Unreachable) and isinstance(error.__cause__, TimeoutError)
            if not self._is_complete:
                raise error
        elif self._paused >= self._patience or (isinstance(error, Unreachable) and error.final):
            raise error


def read_history(client: ApiClient, job: JobView) -> Routine[list[JobEvent]]:
    """The events until now."""
    history = JobHistory(client, job, follow=False)
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
        # A retry would return the same.
        raise Unreachable(f"invalid data in the API's history ({error})", sent=True, final=True) from error
