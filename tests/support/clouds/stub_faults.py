"""How a cloud's stub can be made to misbehave: which requests, how often, and what happens to them."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class StubRequest(Protocol):
    @property
    def permission(self) -> str:
        """As an administrator would grant it."""

    @property
    def is_change(self) -> bool: ...

    @property
    def page(self) -> int:
        """Of a listing; the first is 1."""


RequestT = TypeVar("RequestT", bound=StubRequest)
EffectT = TypeVar("EffectT")


@dataclass(frozen=True, slots=True)
class Reset:
    """The line breaks: before anything is done, or after it."""

    after_the_effect: bool


@dataclass(frozen=True, slots=True)
class Cut:
    """The answer ends early: with its length declared (the line breaks) or not (it seems to be all there is)."""

    declared: bool = True


@dataclass(frozen=True, slots=True)
class Delay:
    """The answer comes late: at first nothing, then `drip` bytes at a time, where the stub can do that."""

    seconds: float
    drip: int | None = None


@dataclass(frozen=True, slots=True)
class Nonsense:
    """An answer that some proxy made: nothing was done."""

    body: bytes = b"<html><body><p>Please log in to the network.</p></body></html>"
    kind: str = "text/html"
    status: int = 200


@dataclass(slots=True)
class Fault(Generic[EffectT, RequestT]):
    effect: EffectT
    where: Callable[[RequestT], bool] = lambda _: True
    times: int | None = None
    """None: for ever."""

    def strikes(self, request: RequestT) -> bool:
        if self.times == 0 or not self.where(request):
            return False
        if self.times is not None:
            self.times -= 1
        return True


class FaultyStub(Generic[EffectT, RequestT]):
    """`called` is what was asked for, in order."""

    def __init__(self) -> None:
        self.faults: list[Fault[EffectT, RequestT]] = []
        self.called: list[RequestT] = []
        self.policy: frozenset[str] | None = None
        """What the caller may do. None: everything."""
        self.denied: set[str] = set()

    def may(self, permission: str) -> bool:
        return permission not in self.denied and (self.policy is None or permission in self.policy)

    @contextlib.contextmanager
    def faulty(self, fault: Fault[EffectT, RequestT]) -> Iterator[None]:
        self.faults.append(fault)
        try:
            yield
        finally:
            self.faults.remove(fault)

    def effect_on(self, request: RequestT) -> EffectT | None:
        return next((fault.effect for fault in self.faults if fault.strikes(request)), None)

    @property
    def actions_called(self) -> set[str]:
        return {request.permission for request in self.called}
