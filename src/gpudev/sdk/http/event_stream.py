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
from gpudev.sdk.effects import Close, NextLine, Pause, Routine, Tell
from gpudev.sdk.errors import NotInTime, Unavailable, Unreachable, UsageError
from gpudev.sdk.http.api_client import Core
from gpudev.sdk.http.endpoints import Reply, get_job
from gpudev.sdk.http.transport import Stream
from gpudev.sdk.standing import is_settled
from gpudev.wire import codec
from gpudev.wire.reservations import JobView

_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 10.0
_PATIENCE_VARIABLE = "GPU_DEV_PATIENCE_SECONDS"
_PATIENCE = 300.0


class Seen(NamedTuple):
    """The reservation as it is now."""

    reply: Reply[JobView]


class Lost(NamedTuple):
    """The API does not answer at the moment; we keep trying."""

    why: str


News = Seen | Lost


class Following:
    def __init__(
        self,
        core: Core,
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
        self._stream: Stream | None = None
        self._parser = sse.Parser()
        self._last_event_id: str | None = None
        self._heard_at = now()
        self._heard_before = self._heard_at
        self._pause = _FIRST_PAUSE
        self._looks_first = False
        """The stream broke: ask plainly before it is opened again."""

    def next(self) -> Routine[News]:
        """Raises when nothing more will come: the API stayed away for too long, or said no."""
        while True:
            try:
                if self._looks_first:
                    return (yield from self._look())
                seen = yield from self._listen()
                if seen is not None:
                    return seen
            except Unavailable as error:
                yield from self.close()
                if self._now() - self._heard_at >= self._patience:
                    raise
                return Lost(error.message)

    def close(self) -> Routine[None]:
        stream, self._stream = self._stream, None
        if stream is not None:
            yield Close(stream)

    def _listen(self) -> Routine[Seen | None]:
        """None: the stream has come to its end."""
        self._looks_first = True
        if self._stream is None:
            self._heard_before = self._heard_at
            self._stream = yield from self._core.open_events(self._job_id, self._last_event_id)
            self._parser = sse.Parser(self._last_event_id)
        while (line := (yield from self._next_line(self._stream))) is not None:
            event = self._parser.feed(line)
            if event is None:
                continue
            self._last_event_id = event.last_id
            if event.kind == "job":
                self._looks_first = False
                return self._seen(_read_job(event.data))
        yield from self.close()
        return None

    def _next_line(self, stream: Stream) -> Routine[bytes | None]:
        left = self._left()
        try:
            line: bytes | None = yield NextLine(stream, left)
        except Unreachable:
            self._left()  # silent, because we would wait no longer?
            raise
        return line

    def _look(self) -> Routine[Seen]:
        heard = self._heard_at > self._heard_before
        self._pause = _FIRST_PAUSE if heard else min(self._pause * 2, _LONGEST_PAUSE)
        left = self._left()
        yield Pause(self._pause if left is None else min(self._pause, left))
        self._looks_first = False
        return self._seen((yield from self._core.ask(get_job(self._job_id))))

    def _seen(self, reply: Reply[JobView]) -> Seen:
        self._heard_at = self._now()
        return Seen(reply)

    def _left(self) -> float | None:
        """Seconds; None: as many as it takes."""
        if self._deadline is None:
            return None
        left = self._deadline - self._now()
        if left <= 0:
            raise NotInTime(f"reservation {self._job_id} was not ready in time")
        return left


def wait_until_ready(
    following: Following, first: JobView, on_change: Callable[[JobView], object] | None = None
) -> Routine[JobView]:
    """The reservation once it is active or has ended; `on_change` is told of everything on the way."""
    job = first
    try:
        while True:
            if on_change is not None:
                yield Tell(on_change, job)
            if is_settled(job):
                return job
            while not isinstance(news := (yield from following.next()), Seen):
                pass
            job = news.reply.value
    finally:
        yield from following.close()


def patience(env: Mapping[str, str] = os.environ) -> float:
    """How long an API that does not answer is waited for."""
    try:
        return max(0.0, float(env.get(_PATIENCE_VARIABLE) or _PATIENCE))
    except ValueError as error:
        raise UsageError(f"{_PATIENCE_VARIABLE} is no number of seconds") from error


def _read_job(data: bytes) -> Reply[JobView]:
    try:
        return Reply(data, codec.decode_model(JobView, json.loads(data)))
    except ValueError as error:
        raise Unavailable(f"the API's stream could not be read ({error})") from error
