"""What goes between the client and the fake API: requests, refusals, and how they go wrong."""

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from gpudev.wire.cluster import Problem


@dataclass
class Asked:
    """One request as it arrived."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Refusal(Exception):
    def __init__(self, status: int, code: str, detail: str, field: str | None = None) -> None:
        super().__init__(detail)
        self.problem = Problem(
            type=f"urn:gpu-dev:problem:{code}",
            title=HTTPStatus(status).phrase,
            status=status,
            detail=detail,
            code=code,
            field=field,
            request_id="r1",
        )


@dataclass
class Trouble:
    """How one request goes wrong."""

    cut_before: bool = False
    """The connection ends before the request is looked at."""
    cut_after: bool = False
    """It is carried out, and then the connection ends without an answer."""
    answer: tuple[int, str, bytes] | None = None
    """Status, content type and body instead of the real ones."""
    headers: tuple[tuple[str, str], ...] = ()
