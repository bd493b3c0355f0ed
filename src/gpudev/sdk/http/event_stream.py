"""One reservation as it changes: a stream of news, kept alive.

When the API's event stream breaks, the reservation is asked for plainly and the stream opened again where it broke,
with growing pauses. It does not know what the news mean.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from gpudev.sdk import sse
from gpudev.sdk.effects import CloseStream, Notify, Pause, ReadLine, Routine
from gpudev.sdk.errors import NotInTime, Unavailable, Unreachable, UsageError
from gpudev.sdk.http.api_client import ApiClient
from gpudev.sdk.http.endpoints import ApiReply, get_job
from gpudev.sdk.http.transport import LineStream
from gpudev.sdk.standing import is_settled
from gpudev.wire import codec
from gpudev.wire.reservations import JobView

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
        self._parser = sse.EventParser()
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
            self._parser = sse.EventParser(self._last_event_id)
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
