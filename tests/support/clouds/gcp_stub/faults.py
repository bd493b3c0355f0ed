"""How the stub refuses, and how it can be made to misbehave: which requests, how often, and what happens to them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    action: str
    """As an administrator would grant it: compute.disks.list"""
    path: str
    query: Mapping[str, str]
    body: Any

    @property
    def is_change(self) -> bool:
        return self.method != "GET"

    @property
    def page(self) -> int:
        """Of a listing; the first is 1."""
        token = self.query.get("pageToken", "")
        return int(token.partition(":")[0].removeprefix("page")) if token else 1


class Refused(Exception):
    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message

    def answer(self) -> dict[str, Any]:
        reasons = [{"message": self.message, "domain": "global", "reason": self.reason}]
        return {"error": {"code": self.status, "message": self.message, "errors": reasons}}


@dataclass(frozen=True, slots=True)
class Refuse:
    """An error of the service; nothing is done."""

    status: int
    reason: str
    message: str = "refused by the test"

    def error(self) -> Refused:
        return Refused(self.status, self.reason, self.message)


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
    seconds: float


@dataclass(frozen=True, slots=True)
class Nonsense:
    """An answer that some proxy made."""

    body: bytes = b"<html><body><p>Please log in to the network.</p></body></html>"
    kind: str = "text/html"
    status: int = 200


Effect = Refuse | Reset | Cut | Delay | Nonsense
SERVER_ERROR = Refuse(503, "backendError", "Internal error. Please try again.")
THROTTLED = Refuse(429, "rateLimitExceeded", "Quota exceeded for quota metric 'Read requests'")


@dataclass(slots=True)
class Fault:
    effect: Effect
    where: Callable[[Request], bool] = lambda _: True
    times: int | None = None
    """None: for ever."""

    def strikes(self, request: Request) -> bool:
        if self.times == 0 or not self.where(request):
            return False
        if self.times is not None:
            self.times -= 1
        return True
