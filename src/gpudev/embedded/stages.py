"""What the supervisor is given, and what it tells: parts in the order of their start, and how far that is.

Apart from the supervisor, for those who only talk about it: they need neither its loop nor its log.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gpudev.embedded.supervised_processes import ChildSpec


@dataclass(frozen=True, slots=True)
class SupervisedService:
    """A part that runs until it is told to end."""

    spec: ChildSpec
    is_ready: Callable[[], bool] = lambda: True
    ready_within: float = 30.0

    @property
    def name(self) -> str:
        return self.spec.name


@dataclass(frozen=True, slots=True)
class SupervisedTask:
    """A part that runs once, before those behind it may start."""

    spec: ChildSpec

    @property
    def name(self) -> str:
        return self.spec.name


@dataclass(frozen=True, slots=True)
class StartupStep:
    """How far the start is; `state` is started, ok or failed."""

    name: str
    state: str
    seconds: float = 0.0
    reason: str | None = None
