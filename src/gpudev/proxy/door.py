"""What a request for a session must look like, and how it is told no. Who gets in is the workflow's to say."""

import json
import re
from http import HTTPStatus

from websockets.datastructures import Headers, MultipleValuesError
from websockets.http11 import Request, Response

from gpudev.domain import errors
from gpudev.http_edge.error_responses import problem_title, problem_type, to_error_response

_PATH = re.compile(r"/v1/jobs/([0-9a-fA-F-]{32,36})/ssh")


def requested_reservation(request: Request) -> str | None:
    """The reservation's id, if the path has one."""
    found = _PATH.fullmatch(request.path.partition("?")[0])
    return found[1] if found else None


def parse_request(request: Request) -> tuple[str, str]:
    """The reservation's id and the token. Raises NotFound, Invalid, Forbidden and Unauthenticated."""
    asked = requested_reservation(request)
    if asked is None:
        raise errors.NotFound("there is no WebSocket here")
    if "?" in request.path:
        # Addresses end up in logs; a token has no place there.
        raise errors.Invalid("this takes no query: send the token as 'Authorization: Bearer gpudevt_…'")
    if "Origin" in request.headers:
        # Only browsers send it, and no page has any business here, whatever it got hold of.
        raise errors.Forbidden("this is not for web pages")
    return asked, _bearer(request.headers)


def handshake_error(error: errors.GpuDevError, request_id: str) -> Response:
    """As the API says no: a problem (RFC 9457)."""
    refused = to_error_response(error)
    problem = {
        "type": problem_type(refused.code),
        "title": problem_title(refused.code),
        "status": refused.status,
        "detail": refused.detail,
        "code": refused.code,
        "request_id": request_id,
    }
    body = json.dumps(problem).encode()
    headers = Headers(
        {
            "Content-Type": "application/problem+json",
            "Content-Length": str(len(body)),
            "Connection": "close",
            "X-Request-ID": request_id,
            **refused.headers,
        }
    )
    return Response(refused.status, HTTPStatus(refused.status).phrase, headers, body)


def _bearer(headers: Headers) -> str:
    try:
        scheme, _, secret = headers.get("Authorization", "").partition(" ")
    except MultipleValuesError as error:
        raise errors.Unauthenticated("send one token, not several") from error
    secret = secret.strip()
    if scheme.lower() != "bearer" or not 16 <= len(secret) <= 256 or not secret.isascii():
        raise errors.Unauthenticated("this needs a token: 'Authorization: Bearer gpudevt_…'")
    return secret
