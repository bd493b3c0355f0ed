"""One reservation as it changes: a stream of news, kept alive.

The API's event stream is read in a thread of its own, so that whoever draws can tick meanwhile. When the stream
breaks, the reservation is asked for plainly and the stream opened again where it broke, with growing pauses. It does
not know what the news mean.
"""

import json
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from gpudev.cli import sse
from gpudev.cli.api import Api, Reply
from gpudev.cli.exits import CliError, Exit
from gpudev.cli.wording import has_ended
from gpudev.wire import codec
from gpudev.wire.jobs import JobView

_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 10.0
_PATIENCE_VARIABLE = "GPU_DEV_PATIENCE_SECONDS"
_PATIENCE = 300.0


class Seen(NamedTuple):
    """The reservation as it is now."""

    reply: Reply[JobView]


class Lost(NamedTuple):
    """The API does not answer at the moment; we keep trying."""

    why: str


class GivenUp(NamedTuple):
    """Nothing more will come."""

    error: CliError


News = Seen | Lost | GivenUp


class Following:
    def __init__(self, new_api: Callable[[], Api], job_id: str, *, patience: float) -> None:
        self._api = new_api()
        self._job_id = job_id
        self._patience = patience
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._last_event_id: str | None = None
        self._heard_at = time.monotonic()
        threading.Thread(target=self._run, name="following", daemon=True).start()

    def next(self, timeout: float | None) -> News | None:
        """The next news; None when `timeout` seconds passed without any."""
        try:
            return self._news.get(timeout=timeout)
        except queue.Empty:
            return None

    def __enter__(self) -> "Following":
        return self

    def __exit__(self, *_: object) -> None:
        """The thread may still be listening; it ends with the next line, or with the process."""
        self._stopped.set()

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopped.is_set():
            heard_before = self._heard_at
            if self._try(self._listen):
                return
            pause = _FIRST_PAUSE if self._heard_at > heard_before else min(pause * 2, _LONGEST_PAUSE)
            if self._stopped.wait(pause) or self._try(self._look):
                return

    def _try(self, act: Callable[[], bool]) -> bool:
        """Whether there is nothing left to follow."""
        try:
            return act()
        except CliError as error:
            patient = time.monotonic() - self._heard_at < self._patience
            if error.exit_code is Exit.UNREACHABLE and patient:
                self._news.put(Lost(error.message))
                return False
            self._news.put(GivenUp(error))
            return True
        except Exception as error:  # noqa: BLE001 - a thread must not die in silence
            self._news.put(GivenUp(CliError(Exit.INTERNAL, f"this is a fault of gpu-dev itself: {error!r}")))
            return True

    def _listen(self) -> bool:
        stream = self._api.events(self._job_id, self._last_event_id)
        try:
            for event in sse.parse(stream.lines(), self._last_event_id):
                self._last_event_id = event.last_id
                if event.kind == "job" and self._report(event.data):
                    return True
                if self._stopped.is_set():
                    return True
        finally:
            stream.close()
        return False

    def _look(self) -> bool:
        return self._see(self._api.get(self._job_id))

    def _report(self, data: bytes) -> bool:
        try:
            job = codec.read(JobView, json.loads(data))
        except ValueError as error:
            raise CliError(Exit.UNREACHABLE, f"the API's stream could not be read ({error})") from error
        return self._see(Reply(data, job))

    def _see(self, reply: Reply[JobView]) -> bool:
        self._heard_at = time.monotonic()
        self._news.put(Seen(reply))
        return has_ended(reply.value)


def patience(env: Mapping[str, str] = os.environ) -> float:
    """How long an API that does not answer is waited for."""
    try:
        return max(0.0, float(env.get(_PATIENCE_VARIABLE) or _PATIENCE))
    except ValueError as error:
        raise CliError(Exit.USAGE, f"{_PATIENCE_VARIABLE} is no number of seconds") from error
