"""Routing of /v1 requests: authorizes the caller, then reads the body.

Bodies are limited in size and depth, and must be JSON objects whose texts PostgreSQL can store. The models of
`gpudev.wire` validate the fields.
"""

import json
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Annotated, Any, get_origin

import orjson
from fastapi import APIRouter, Depends, Request, Response, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope

from gpudev.api.permissions import MissingRule, RequiredRole, get_rule
from gpudev.api.request_guard import AuditedEndpoint, RequestGuard
from gpudev.domain.access.users import ApiKey
from gpudev.domain.errors import Invalid

MAX_BODY = 1024 * 1024
MAX_DISCARDED = 16 * MAX_BODY
MAX_DEPTH = 32


class _DocumentedBearer(HTTPBearer):
    """Documents the authentication in OpenAPI; V1Route enforces it."""

    async def __call__(self, request: Request) -> None:  # type: ignore[override]
        return None


_bearer_scheme = _DocumentedBearer(
    auto_error=False, bearerFormat="gpudev_…", description="An API key (`gpu-dev login` gets one)."
)


class V1Route(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        rule = get_rule(self.methods, self.path)
        takes_body = self.body_field is not None
        needs_body = self.body_field is not None and self.body_field.field_info.is_required()
        # Name → whether it may be repeated.
        query = {field.alias: get_origin(field.field_info.annotation) is list for field in self.dependant.query_params}

        async def handle_checked(request: Request) -> Response:
            guard: RequestGuard = request.app.state.guard
            await guard.admit(request, rule)
            if request.scope["query_string"]:
                _check_query(request, query)
            if takes_body and (needs_body or _has_body(request)):
                value = await _read_json(request)
                request = _ParsedRequest(request.scope, request.receive, value)
            return await handle(request)

        return AuditedEndpoint(f"{next(iter(self.methods or ()))} {self.path}", rule, handle_checked)


def check_routes(router: APIRouter) -> None:
    """Every endpoint must have a permission rule and enforce it."""
    for route in router.routes:
        if not isinstance(route, APIRoute):
            raise MissingRule(f"no permission rule for {route}")
        rule = get_rule(route.methods, route.path)
        if rule.required_role is not RequiredRole.OPEN and not isinstance(route, V1Route):
            raise MissingRule(f"{route.path} requires the role {rule.required_role}, but only a V1Route checks roles")


async def _get_caller(request: Request, _documented: Annotated[Any, Security(_bearer_scheme)]) -> ApiKey:
    key: ApiKey = request.state.caller
    return key


Caller = Annotated[ApiKey, Depends(_get_caller)]


class _ParsedRequest(Request):
    """A request whose body is parsed already."""

    def __init__(self, scope: Scope, receive: Receive, value: Any) -> None:
        super().__init__(scope, receive)
        self._value = value

    async def body(self) -> bytes:
        return b"read"  # FastAPI only checks that it is not empty

    async def json(self) -> Any:
        return self._value


def _check_query(request: Request, known: Mapping[str, bool]) -> None:
    """Rejects unknown parameters: a misspelt filter must not be ignored."""
    counts = Counter(name for name, _ in request.query_params.multi_items())
    for name, count in counts.items():
        if name not in known:
            expected = f"expected {', '.join(known)}" if known else "expected none"
            raise Invalid(f"unknown query parameter {name[:80]!r} ({expected})", field=name[:80])
        if count > 1 and not known[name]:
            raise Invalid(f"{name} is given {count} times; give it once", field=name)


def _has_body(request: Request) -> bool:
    return request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers


async def _read_json(request: Request) -> Any:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise HTTPException(415, "send the body as JSON, with 'Content-Type: application/json'")
    body = await _read_bounded(request)
    try:
        value = orjson.loads(body)
    except json.JSONDecodeError as error:
        raise HTTPException(400, f"the request body is not valid JSON: {error}") from error
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _is_deeper_than(value, MAX_DEPTH):
        raise HTTPException(400, f"the request body is nested more than {MAX_DEPTH} levels deep")
    if not isinstance(value, dict):
        raise Invalid("the request body must be a JSON object")
    # Valid JSON, but PostgreSQL cannot store NUL. Only this escape can produce it.
    if b"\\u0000" in body:
        for field, part in value.items():
            if any("\x00" in text for text in _iter_texts([field, part])):
                raise Invalid(f"{field[:80]!r} contains a NUL character", field=field[:80])
    return value


async def _read_bounded(request: Request) -> bytes:
    """At most MAX_BODY bytes are kept. A larger body is read on for a while and discarded: if the connection were
    closed while the client still sends, the client would not get the error."""
    too_large = HTTPException(413, f"the request body is larger than {MAX_BODY} bytes", {"Connection": "close"})
    declared = request.headers.get("content-length", "0")
    if "expect" in request.headers and declared.isdigit() and len(declared) > len(str(MAX_BODY)):
        raise too_large  # the client waits for "100 Continue" and sends nothing
    body, size = bytearray(), 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= MAX_BODY:
            body += chunk
        elif size > MAX_DISCARDED:
            break
    if size > MAX_BODY:
        raise too_large
    return bytes(body)


def _is_deeper_than(value: Any, max_depth: int) -> bool:
    layer: list[Any] = [value]
    for _ in range(max_depth + 1):
        layer = [
            inner
            for outer in layer
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not layer:
            return False
    return True


def _iter_texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value, without recursion: its depth may be near Python's recursion limit."""
    pending = [value]
    while pending:
        match pending.pop():
            case str() as text:
                yield text
            case list() as items:
                pending += items
            case dict() as items:
                pending += items.keys()
                pending += items.values()
            case _:
                pass
