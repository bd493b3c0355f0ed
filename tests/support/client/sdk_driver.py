"""Routines carried out by hand: each effect is met with what the test has for it."""

from collections.abc import Iterable
from typing import Any

from gpudev.sdk.http.routines import Effect, Routine


def drive(routine: Routine[Any], came: Iterable[Any]) -> tuple[Any, list[Effect]]:
    """What it comes to, and everything it asked for. An exception among `came` is thrown into it."""
    effects: list[Effect] = []
    results = iter(came)
    outcome: Any = None
    while True:
        try:
            effect = routine.throw(outcome) if isinstance(outcome, BaseException) else routine.send(outcome)
        except StopIteration as end:
            assert list(results) == [], "it asked for less than was expected"
            return end.value, effects
        effects.append(effect)
        outcome = next(results)
