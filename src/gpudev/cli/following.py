"""A reservation's news, heard in a thread of its own, so that whoever draws can tick meanwhile."""

import queue
import threading
from typing import NamedTuple

from gpudev.cli.api_calls import Api
from gpudev.cli.exit_codes import CliError, Exit
from gpudev.sdk.errors import ClientError
from gpudev.sdk.http import event_stream
from gpudev.sdk.http.event_stream import Lost, Seen
from gpudev.sdk.standing import has_ended


class GivenUp(NamedTuple):
    """Nothing more will come."""

    error: ClientError


News = Seen | Lost | GivenUp


class Following:
    def __init__(self, api: Api, job_id: str, *, patience: float) -> None:
        """`api` is this one's alone."""
        self._api = api
        self._followed = event_stream.Following(api.core, job_id, patience=patience)
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._stopped = threading.Event()
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
        """The thread may still be listening; it ends with the next news, or with the process."""
        self._stopped.set()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                news = self._api.run(self._followed.next())
                self._news.put(news)
                if isinstance(news, Seen) and has_ended(news.reply.value):
                    return
        except ClientError as error:
            self._news.put(GivenUp(error))
        except Exception as error:  # noqa: BLE001 - a thread must not die in silence
            self._news.put(GivenUp(CliError(Exit.INTERNAL, f"this is a fault of gpu-dev itself: {error!r}")))
