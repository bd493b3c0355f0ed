"""How values become bytes: dataclasses straight to JSON, without being validated on the way out."""

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response


def to_json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_UTC_Z)


class JsonResponse(Response):
    media_type = "application/json"

    def __init__(self, value: Any, status_code: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(to_json(value), status_code, headers)


class ProblemResponse(JsonResponse):
    media_type = "application/problem+json"
