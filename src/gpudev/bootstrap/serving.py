"""How a server of ours stops: when asked to, and with everything behind it closed afterwards."""

import asyncio
import contextlib
import signal
from collections.abc import Iterator

import uvicorn

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class GracefulServer(uvicorn.Server):
    """uvicorn's own raises the signal again when it has stopped serving. That would kill the process before what
    stands behind it is closed: entries of the audit log would be lost on a clean stop."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in _STOP_SIGNALS:
                loop.remove_signal_handler(number)
