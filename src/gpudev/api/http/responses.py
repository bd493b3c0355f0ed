"""JSON responses, and errors as problem documents (RFC 9457)."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gpudev.domain import errors
from gpudev.http_edge.error_responses import error_code, problem_title, problem_type, to_error_response
from gpudev.wire.cluster import Problem


def to_json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_UTC_Z)


class JsonResponse(Response):
    media_type = "application/json"

    def __init__(self, value: Any, status_code: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(to_json(value), status_code, headers)


class ProblemResponse(JsonResponse):
    media_type = "application/problem+json"


# How the API says no: a status, a code, and a sentence for the person who asked (RFC 9457).
#
# What was not foreseen says nothing about itself to the outside; the log has it under the same request id.


_MAX_SENTENCES = 5
_PYDANTIC_SUBJECT = re.compile(r"^(?:Input|String|List|Value|Datetime|Number|URL) should ")
log = structlog.get_logger()


def problem_response(
    request_id: str | None,
    status: int,
    code: str,
    detail: str,
    *,
    field: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> ProblemResponse:
    body = Problem(
        type=problem_type(code),
        title=problem_title(code),
        status=status,
        detail=detail,
        code=code,
        field=field,
        request_id=request_id,
    )
    return ProblemResponse(body, status, headers)


def install_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(errors.GpuDevError, _on_domain_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_error)


async def _on_domain_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.GpuDevError)
    refusal = to_error_response(error)
    if refusal.status >= 500:
        log.warning("http.refused", code=error.code, error=error.message, cause=repr(error.__cause__))
    field = error.field if isinstance(error, errors.Invalid) else None
    return problem_response(
        request.state.request_id, refusal.status, refusal.code, refusal.detail, field=field, headers=refusal.headers
    )


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    details = error.errors()
    sentences = [_describe_validation_error(detail) for detail in details[:_MAX_SENTENCES]]
    if len(details) > _MAX_SENTENCES:
        sentences.append(f"and {len(details) - _MAX_SENTENCES} more")
    field = _field_name(details[0]["loc"])
    return problem_response(request.state.request_id, 422, errors.Invalid.code, "; ".join(sentences), field=field)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = error.status_code
    code = error_code(status)
    detail = error.detail
    if status == 404:
        detail = f"there is no {request.url.path[:200]!r} here; see /docs for what there is"
    if status == 405:
        detail = f"{request.method} is not answered here; see /docs for what is"
    return problem_response(request.state.request_id, status, code, detail, headers=error.headers)


def _describe_validation_error(detail: Mapping[str, Any]) -> str:
    """A validator's finding in words that name the field."""
    field = _field_name(detail["loc"]) or "the request body"
    match detail["type"]:
        case "missing":
            return f"{field} is missing"
        case "extra_forbidden" | "unexpected_keyword_argument":
            return f"{field} is not known here"
        case "dataclass_type" | "model_attributes_type" | "dict_type":
            return f"{field} must be a JSON object"
        case "value_error":
            return f"{field} {detail['ctx']['error']}"
        case _:
            said, known = _PYDANTIC_SUBJECT.subn(
                f"{field} must ", str(detail["msg"]).replace(" after validation", ""), count=1
            )
            return said if known else f"{field}: {said}"


def _field_name(location: Sequence[str | int]) -> str | None:
    """("body", "ssh_public_keys", 1) as "ssh_public_keys[1]"; headers by the name they have on the wire."""
    place, *path = location
    name = ""
    for part in path:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    return (name or None) if place != "header" else name.title()
