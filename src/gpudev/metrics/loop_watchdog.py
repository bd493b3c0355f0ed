"""Detects loops of a process that hang.

A loop that fails and retries is alive. A loop that hangs is not, and only a new process helps.
"""

import time
from collections.abc import Callable
from datetime import timedelta

STUCK_AFTER = timedelta(minutes=2)
"""A loop without a beat for this long hangs: every loop completes a cycle within seconds, also when it fails. Its
process then reports that it is not alive, so that its supervisor starts another."""


class LoopWatchdog:
    def __init__(self, stuck_after: timedelta = STUCK_AFTER, seconds: Callable[[], float] = time.monotonic) -> None:
        self._stuck_after = stuck_after.total_seconds()
        self._seconds = seconds
        self._beats: dict[str, float] = {}

    def beat(self, loop: str) -> None:
        """Record that this loop has just completed a cycle. It is watched from its first beat on."""
        self._beats[loop] = self._seconds()

    def forget(self, loop: str) -> None:
        self._beats.pop(loop, None)

    def stuck_loops(self) -> dict[str, float]:
        """The loops that hang, each with the seconds since its last beat."""
        now = self._seconds()
        return {loop: now - at for loop, at in self._beats.items() if now - at > self._stuck_after}
