"""A request to Compute Engine, and how it refuses one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from support.clouds.stub_faults import Cut, Delay, Nonsense, Reset


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    action: str
    """As an administrator would grant it: compute.disks.list"""
    path: str
    query: Mapping[str, str]
    body: Any

    @property
    def permission(self) -> str:
        return self.action

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


Effect = Refuse | Reset | Cut | Delay | Nonsense
SERVER_ERROR = Refuse(503, "backendError", "Internal error. Please try again.")
THROTTLED = Refuse(429, "rateLimitExceeded", "Quota exceeded for quota metric 'Read requests'")
