"""Signal handling for commands that must release a reservation before they exit."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_REPEAT_SECONDS = 2.0
"""Repeated signals within this time count once: a second one would interrupt the release."""


@contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt too, so that GPUs are released."""
    stopped_at = float("-inf")

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal stopped_at
        if time.monotonic() - stopped_at < _REPEAT_SECONDS:
            return
        stopped_at = time.monotonic()
        raise KeyboardInterrupt

    # Signals that are ignored (nohup) stay ignored.
    handled = [number for number in _END_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = [(number, signal.signal(number, stop)) for number in handled]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@contextmanager
def signals_ignored() -> Iterator[None]:
    """Ignore Ctrl-C, SIGTERM and SIGHUP."""
    before = [(number, signal.signal(number, signal.SIG_IGN)) for number in _END_SIGNALS]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
