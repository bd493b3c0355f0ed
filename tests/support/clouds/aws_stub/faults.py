"""How AWS refuses."""

from dataclasses import dataclass

from support.clouds.aws_stub.account import Refused
from support.clouds.aws_stub.query import Request
from support.clouds.stub_faults import Cut, Delay, Nonsense, Reset


@dataclass(frozen=True, slots=True)
class Refuse:
    """An error of the service; nothing is done."""

    code: str
    message: str = "refused by the test"
    status: int = 400

    def error(self) -> Refused:
        return Refused(self.code, self.message, self.status)


Effect = Refuse | Reset | Cut | Delay | Nonsense
SERVER_ERROR = Refuse("InternalError", "An internal error has occurred", 500)
THROTTLED = Refuse("RequestLimitExceeded", "Request limit exceeded.", 503)


def throttled(request: Request) -> Refuse:
    """Each service has its own word for it."""
    return Refuse("Throttling", "Rate exceeded", 400) if request.service == "autoscaling" else THROTTLED
