"""How the stub can be made to misbehave: which requests, how often, and what happens to them."""

from collections.abc import Callable
from dataclasses import dataclass

from support.clouds.aws_stub.account import Refused
from support.clouds.aws_stub.query import Request


@dataclass(frozen=True, slots=True)
class Refuse:
    """An error of the service; nothing is done."""

    code: str
    message: str = "refused by the test"
    status: int = 400

    def error(self) -> Refused:
        return Refused(self.code, self.message, self.status)


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
    """The answer comes late: at first nothing, then `drip` bytes at a time."""

    seconds: float
    drip: int | None = None


@dataclass(frozen=True, slots=True)
class Nonsense:
    """Success, and a page that some proxy made: nothing was done."""

    body: str = "<html><body><p>Please log in to the network.</p></body></html>"


Effect = Refuse | Reset | Cut | Delay | Nonsense
SERVER_ERROR = Refuse("InternalError", "An internal error has occurred", 500)
THROTTLED = Refuse("RequestLimitExceeded", "Request limit exceeded.", 503)


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


def throttled(request: Request) -> Refuse:
    """Each service has its own word for it."""
    return Refuse("Throttling", "Rate exceeded", 400) if request.service == "autoscaling" else THROTTLED
