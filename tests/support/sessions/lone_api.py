"""An API that only has /health, as a process of its own, with its proxy in another one (`lone_proxy`).

Prints its port. Arguments: the folder through which both pass connections on."""

import sys
from dataclasses import replace
from pathlib import Path

import structlog
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from gpudev.bootstrap.handover import open_api_beside_proxy
from gpudev.settings import Settings
from support.api.serving import serve_and_print_port


async def health(_request: Request) -> PlainTextResponse:
    return PlainTextResponse("ok")


async def serve(folder: Path) -> None:
    app = Starlette(routes=[Route("/health", health)])
    async with open_api_beside_proxy(app, folder, replace(Settings(), api_port=0)) as server:
        await serve_and_print_port(server)


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    uvloop.run(serve(Path(sys.argv[1])))
