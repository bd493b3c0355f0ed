"""What a request for a session must look like, and how it is told no. Who gets in is the workflow's to say."""

import json
import re
from http import HTTPStatus

from websockets.datastructures import Headers, MultipleValuesError
from websockets.http11 import Request, Response

from gpudev.domain import errors

_PATH = re.compile(r"/v1/jobs/([0-9a-fA-F-]{32,36})/ssh")
_STATUS = {
    errors.Invalid: 422,
    errors.Unauthenticated: 401,
    errors.Forbidden: 403,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.LimitReached: 429,
    errors.Unavailable: 503,
    errors.ClusterError: 502,
    errors.GpuDevError: 500,
}


def read(request: Request) -> tuple[str, str]:
    """The reservation's id and the token. Raises NotFound, Invalid, Forbidden and Unauthenticated."""
    path, question_mark, _ = request.path.partition("?")
    found = _PATH.fullmatch(path)
    if found is None:
        raise errors.NotFound("there is no WebSocket here")
    if question_mark:
        # Addresses end up in logs; a token has no place there.
        raise errors.Invalid("this takes no query: send the token as 'Authorization: Bearer gpudevt_…'")
    if "Origin" in request.headers:
        # Only browsers send it, and no page has any business here, whatever it got hold of.
        raise errors.Forbidden("this is not for web pages")
    return found[1], _bearer(request.headers)


def refusal(error: errors.GpuDevError) -> Response:
    """As the API says no: a problem (RFC 9457). What follows a colon in a fault is for the log alone."""
    status = next(_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS)
    detail = error.message.partition(": ")[0] if status >= 500 else error.message
    body = json.dumps(
        {
            "type": f"urn:gpu-dev:problem:{error.code}",
            "title": error.code.replace("_", " ").capitalize(),
            "status": status,
            "detail": detail,
            "code": error.code,
        }
    ).encode()
    headers = Headers(
        {"Content-Type": "application/problem+json", "Content-Length": str(len(body)), "Connection": "close"}
    )
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Bearer realm="gpu-dev"'
    return Response(status, HTTPStatus(status).phrase, headers, body)


def _bearer(headers: Headers) -> str:
    try:
        scheme, _, secret = headers.get("Authorization", "").partition(" ")
    except MultipleValuesError as error:
        raise errors.Unauthenticated("send one token, not several") from error
    secret = secret.strip()
    if scheme.lower() != "bearer" or not 16 <= len(secret) <= 256 or not secret.isascii():
        raise errors.Unauthenticated("this needs a token: 'Authorization: Bearer gpudevt_…'")
    return secret
