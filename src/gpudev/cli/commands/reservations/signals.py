"""Ctrl-C and other signals, where something must be released before the program ends."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_REPEAT_SECONDS = 2.0
"""Whoever presses Ctrl-C again and again so soon means it once: a second one would interrupt what the first began."""


@contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """Whoever ends this program from outside, or closes its terminal, wants the GPUs to be free too."""
    stopped_at = float("-inf")

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal stopped_at
        if time.monotonic() - stopped_at < _REPEAT_SECONDS:
            return
        stopped_at = time.monotonic()
        raise KeyboardInterrupt

    # Started with nohup, or by whoever else has them ignored: that stays so.
    heard = [number for number in _END_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = [(number, signal.signal(number, stop)) for number in heard]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@contextmanager
def signals_ignored() -> Iterator[None]:
    """Nothing like Ctrl-C stops this."""
    before = [(number, signal.signal(number, signal.SIG_IGN)) for number in _END_SIGNALS]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
