"""Pages for people: the start page, and Swagger UI at /docs from files of this package, without any other host.

They are not part of the API: no version, no key, and not in the OpenAPI document.
"""

import gzip
import hashlib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from gpudev.api.http.responses import JsonResponse
from gpudev.http_edge.html_pages import html_page, wants_html
from gpudev.version import __version__

_DOCS_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>gpu-dev API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<noscript>This page needs JavaScript. The same as JSON: <a href="openapi.json">openapi.json</a></noscript>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/docs.js"></script>
</body>
</html>
"""
_DOCS_HEADERS = {
    # The icons of its style sheet are `data:` images.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
}
_START_PAGE = """
<p>Shared GPU developer servers: reserve GPUs, get a shell, find your disk again next time.</p>
<p>You use it from a terminal. <code>pip install gpu-dev</code> installs the command; tell it the address of this page
once:</p>
<pre>gpu-dev config set api_url ADDRESS
gpu-dev login
gpu-dev avail
gpu-dev reserve --gpus 1 --hours 4
gpu-dev connect
gpu-dev run -- python train.py</pre>
<p>Programs use the <a href="docs">HTTP API</a> (<a href="openapi.json">OpenAPI document</a>).
<a href="health">Health</a> shows whether the service works.</p>
"""
_START_DOCUMENT = {"name": "gpu-dev", "version": __version__, "docs": "/docs", "openapi": "/openapi.json"}


class _Asset(NamedTuple):
    media_type: str
    content: bytes
    """Compressed with gzip."""
    etag: str


_MEDIA_TYPES = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "docs.js": "text/javascript",
}


def page_routes() -> list[Route]:
    return [
        Route("/", _start_page),
        Route("/docs", _docs_page),
        Route("/docs/{name}", _docs_asset),
    ]


async def _start_page(request: Request) -> Response:
    if wants_html(request.scope["headers"]):
        response: Response = html_page("gpu-dev", _START_PAGE)
    else:
        response = JsonResponse({**_START_DOCUMENT, "health": "/health"})
    response.headers["Vary"] = "Accept"
    return response


async def _docs_page(_request: Request) -> Response:
    return HTMLResponse(_DOCS_PAGE, headers=_DOCS_HEADERS)


async def _docs_asset(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _MEDIA_TYPES:
        raise HTTPException(404)
    asset = _load_asset(name)
    headers = {"ETag": asset.etag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == asset.etag:
        return Response(status_code=304, headers=headers)
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(gzip.decompress(asset.content), headers=headers, media_type=asset.media_type)
    return Response(asset.content, headers={**headers, "Content-Encoding": "gzip"}, media_type=asset.media_type)


@cache
def _load_asset(name: str) -> _Asset:
    folder = files("gpudev.api") / "static"
    compressed = folder / f"{name}.gz"
    content = compressed.read_bytes() if compressed.is_file() else gzip.compress((folder / name).read_bytes(), mtime=0)
    return _Asset(_MEDIA_TYPES[name], content, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
