"""What happens to a /v1 request before its endpoint sees it: who asks is checked first, then the body is read.

Bodies are read here and strictly: bounded in size, UTF-8 JSON that a database can store, objects not too deep.
Nothing about what the fields mean is known here.
"""

import json
from collections.abc import Callable, Coroutine, Iterator
from typing import Annotated, Any

import orjson
from fastapi import Depends, Request, Response, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope

from gpudev.api.authentication import Authentication
from gpudev.domain.errors import Invalid
from gpudev.domain.users import ApiKey

MAX_BODY = 1024 * 1024
_bearer = HTTPBearer(auto_error=False, bearerFormat="gpudev_…", description="An API key (`gpu-dev login` gets one).")


class V1Route(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        takes_body = self.body_field is not None

        async def handle_checked(request: Request) -> Response:
            authentication: Authentication = request.app.state.authentication
            key = await authentication.authenticate(request.headers.get("authorization"))
            request.state.caller = key
            request.state.username = key.user.username
            if takes_body:
                value = await _read_json(request)
                request = _ReadRequest(request.scope, request.receive, value)
            return await handle(request)

        return handle_checked


async def _caller(request: Request, _documented: Annotated[Any, Security(_bearer)]) -> ApiKey:
    key: ApiKey = request.state.caller
    return key


Caller = Annotated[ApiKey, Depends(_caller)]


class _ReadRequest(Request):
    """A request whose body was read and understood already."""

    def __init__(self, scope: Scope, receive: Receive, value: Any) -> None:
        super().__init__(scope, receive)
        self._value = value

    async def body(self) -> bytes:
        return b"read"  # FastAPI only asks whether there is one

    async def json(self) -> Any:
        return self._value


async def _read_json(request: Request) -> Any:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise HTTPException(415, "send the body as JSON, with 'Content-Type: application/json'")
    body = await _read_bounded(request)
    try:
        value = orjson.loads(body)
    except json.JSONDecodeError as error:
        raise HTTPException(400, f"the request body is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise Invalid("the request body must be a JSON object")
    # Valid JSON, but no text for PostgreSQL. Only this escape can bring it in.
    if b"\\u0000" in body:
        for field, part in value.items():
            if any("\x00" in text for text in _texts([field, part])):
                raise Invalid(f"{field[:80]!r} holds a NUL character", field=field[:80])
    return value


async def _read_bounded(request: Request) -> bytes:
    too_large = HTTPException(413, f"the request body is larger than {MAX_BODY} bytes", {"Connection": "close"})
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and (len(declared) > len(str(MAX_BODY)) or int(declared) > MAX_BODY):
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise too_large
    return bytes(body)


def _texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value. Its depth was bounded when it was read, but not far below Python's own limit,
    so this walks without recursion."""
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
