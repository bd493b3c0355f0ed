"""A reservation's news, heard in a thread of its own, so that whoever draws can tick meanwhile."""

import queue
import threading
from typing import NamedTuple

from gpudev.cli.api_calls import CommandApi
from gpudev.cli.exit_codes import CliError, ExitCode
from gpudev.sdk.errors import ClientError
from gpudev.sdk.http import event_stream
from gpudev.sdk.http.event_stream import ConnectionLost, JobUpdate
from gpudev.sdk.standing import has_ended


class WatchFailed(NamedTuple):
    """Nothing more will come."""

    error: ClientError


ThreadEvent = JobUpdate | ConnectionLost | WatchFailed


class WatchThread:
    def __init__(self, api: CommandApi, job_id: str, *, patience: float) -> None:
        """`api` is this one's alone."""
        self._api = api
        self._watch = event_stream.JobWatch(api.client, job_id, patience=patience)
        self._events: queue.SimpleQueue[ThreadEvent] = queue.SimpleQueue()
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="following", daemon=True).start()

    def next(self, timeout: float | None) -> ThreadEvent | None:
        """The next news; None when `timeout` seconds passed without any."""
        try:
            return self._events.get(timeout=timeout)
        except queue.Empty:
            return None

    def __enter__(self) -> "WatchThread":
        return self

    def __exit__(self, *_: object) -> None:
        """The thread may still be listening; it ends with the next news, or with the process."""
        self._stopped.set()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                news = self._api.run(self._watch.next())
                self._events.put(news)
                if isinstance(news, JobUpdate) and has_ended(news.reply.value):
                    return
        except ClientError as error:
            self._events.put(WatchFailed(error))
        except Exception as error:  # noqa: BLE001 - a thread must not die in silence
            self._events.put(WatchFailed(CliError(ExitCode.INTERNAL, f"this is a fault of gpu-dev itself: {error!r}")))
