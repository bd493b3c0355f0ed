"""How long the planning loop rests after a turn, so that others come first and wake-ups share a turn: pure.

Each turn has to be made up for by three times its length of rest, waiting for a wake-up included (while a turn waits
for the database, that one works). A little may be owed: a single long turn delays nobody who comes right behind it,
while a loop that never stops works a quarter of the time.
"""

_REST_PER_CYCLE = 3.0
_LARGEST_DEBT_S = 0.15
_LONGEST_REST_S = 0.4


class DutyCycle:
    def __init__(self) -> None:
        self._owed = 0.0
        self._ended: float | None = None

    def rest_after(self, began: float, ended: float) -> float:
        """Seconds to rest after a turn that went from `began` to `ended`, by a clock that only goes forward."""
        rested = 0.0 if self._ended is None else began - self._ended
        self._owed = max(0.0, self._owed - rested) + _REST_PER_CYCLE * (ended - began)
        self._owed = min(self._owed, _LARGEST_DEBT_S + _LONGEST_REST_S)
        self._ended = ended
        return max(0.0, self._owed - _LARGEST_DEBT_S)
