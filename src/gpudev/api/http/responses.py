"""Responses: JSON, errors as problem documents (RFC 9457), and streams of server-sent events."""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, suppress
from typing import Any

import orjson
import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gpudev.domain import errors
from gpudev.domain.reservations.reservation import find_utc_times
from gpudev.http_edge.error_responses import error_code, problem_title, problem_type, to_error_response
from gpudev.http_edge.html_pages import html_page, paragraph, wants_html
from gpudev.wire.cluster import Problem
from gpudev.wire.reservations import JobEvent, JobView


def to_json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_UTC_Z)


class JsonResponse(Response):
    media_type = "application/json"

    def __init__(self, value: Any, status_code: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(to_json(value), status_code, headers)


class ProblemResponse(JsonResponse):
    media_type = "application/problem+json"


# Errors as problem documents. An unexpected error reveals no detail; the log has it under the same request id.


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
        times=find_utc_times(detail) or None,
    )
    return ProblemResponse(body, status, headers)


def install_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(errors.GpuDevError, _on_domain_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_error)


def _error_response(
    request: Request,
    status: int,
    code: str,
    detail: str,
    *,
    field: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A page for a person who opened this address in a browser, otherwise a problem document."""
    if request.method != "GET" or not wants_html(request.scope["headers"]):
        return problem_response(request.state.request_id, status, code, detail, field=field, headers=headers)
    back = '<p><a href="/">What this is</a> · <a href="/docs">API documentation</a></p>'
    page = html_page(problem_title(code), paragraph(detail) + back, status)
    page.headers.update(headers or {})
    return page


async def _on_domain_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.GpuDevError)
    response = to_error_response(error)
    if response.status >= 500:
        log.warning("http.error", code=error.code, error=error.message, cause=repr(error.__cause__))
    field = error.field if isinstance(error, errors.Invalid) else None
    return _error_response(
        request, response.status, response.code, response.detail, field=field, headers=response.headers
    )


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    details = error.errors()
    sentences = [_describe_validation_error(detail) for detail in details[:_MAX_SENTENCES]]
    if len(details) > _MAX_SENTENCES:
        sentences.append(f"and {len(details) - _MAX_SENTENCES} more")
    field = _field_name(details[0]["loc"])
    return _error_response(request, 422, errors.Invalid.code, "; ".join(sentences), field=field)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = error.status_code
    code = error_code(status)
    detail = error.detail
    if status == 404:
        detail = f"no endpoint {request.url.path[:200]!r}; see /docs"
    if status == 405:
        detail = f"method {request.method} not allowed; see /docs"
    return _error_response(request, status, code, detail, headers=error.headers)


def _describe_validation_error(detail: Mapping[str, Any]) -> str:
    """A validation error as a sentence that names the field."""
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
            sentence, is_known = _PYDANTIC_SUBJECT.subn(
                f"{field} must ", str(detail["msg"]).replace(" after validation", ""), count=1
            )
            return sentence if is_known else f"{field}: {sentence}"


def _field_name(location: Sequence[str | int]) -> str | None:
    """("body", "ssh_public_keys", 1) as "ssh_public_keys[1]"; headers by their name on the wire."""
    source, *path = location
    name = ""
    for part in path:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    return (name or None) if source != "header" else name.title()


# Server-sent events.


KEEP_ALIVE_SECONDS = 15.0
AUTHORIZATION_CHECK_SECONDS = 0.3
_CLOSE_SECONDS = 0.5
_LAST_MESSAGE: Message = {"type": "http.response.body", "body": b"", "more_body": False}
StreamItem = JobView | JobEvent | None


class EventStream(Response):
    """Sends items as they arrive. Ends with the source, with the client's disconnect, when the client is no longer
    authorized, or when the server stops: the client then continues at the next one, after the last event it got. None
    from the source means no news; a comment then keeps proxies from closing the idle connection.

    The source is closed before the request ends, so its resources are released.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        items: AsyncGenerator[StreamItem, None],
        is_allowed: Callable[[], Awaitable[bool]],
        slot: AbstractContextManager[None],
        keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
        stopping: asyncio.Event | None = None,
    ) -> None:
        """`is_allowed` is checked before each item and periodically: a key may be revoked while the stream runs.
        `slot` is held until the stream ends. `stopping` is set when the server is about to stop."""
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._items = items
        self._is_allowed = is_allowed
        self._slot = slot
        self._keep_alive_seconds = keep_alive_seconds
        self._stopping = stopping or asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._slot:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            streaming = asyncio.create_task(self._stream(send))
            tasks: set[asyncio.Task[Any]] = {
                streaming,
                asyncio.create_task(_wait_for_disconnect(receive)),
                asyncio.create_task(self._stopping.wait()),
            }
            try:
                await self._watch(tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
        if not streaming.cancelled():
            streaming.result()
            return
        with suppress(TimeoutError):  # a client that does not read is cut off
            async with asyncio.timeout(_CLOSE_SECONDS):
                await send(_LAST_MESSAGE)

    async def _watch(self, tasks: set[asyncio.Task[Any]]) -> None:
        """Until a task is done or the client is no longer authorized."""
        while True:
            done, _ = await asyncio.wait(
                tasks, timeout=AUTHORIZATION_CHECK_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if done or not await self._is_allowed():
                return

    async def _stream(self, send: Send) -> None:
        sent_at = time.monotonic()
        async with aclosing(self._items):
            async for item in self._items:
                if item is not None:
                    message = encode_event(item)
                elif time.monotonic() - sent_at >= self._keep_alive_seconds:
                    message = b": still here\n\n"
                else:
                    continue
                if not await self._is_allowed():
                    break
                await send({"type": "http.response.body", "body": message, "more_body": True})
                sent_at = time.monotonic()
        await send(_LAST_MESSAGE)


def encode_event(item: JobView | JobEvent) -> bytes:
    data = b"data: " + to_json(item) + b"\n\n"
    if isinstance(item, JobView):
        return b"event: job\n" + data
    return b"event: event\nid: %d\n" % item.event_id + data


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
