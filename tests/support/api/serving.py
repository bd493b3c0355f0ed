"""An app on a real socket of this machine."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from socket import socket
from typing import Any

import uvicorn

from support.polling import eventually_async


@asynccontextmanager
async def serving(app: Any, *, on: socket | None = None, **settings: Any) -> AsyncIterator[uvicorn.Server]:
    """While it serves, on a free port or on the given socket. `settings` are those of uvicorn."""
    config = uvicorn.Config(
        app, **{"port": 0, "lifespan": "off", "log_config": None, "timeout_graceful_shutdown": 1, **settings}
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=None if on is None else [on]))
    await eventually_async(lambda: server.started)
    try:
        yield server
    finally:
        server.should_exit = True
        await task


async def serve_and_print_port(server: uvicorn.Server) -> None:
    """For a process of its own: whoever started it reads the port."""
    serving = asyncio.create_task(server.serve())
    await eventually_async(lambda: server.started)
    print(port_of(server), flush=True)
    await serving


def port_of(server: uvicorn.Server) -> int:
    port: int = server.servers[0].sockets[0].getsockname()[1]
    return port
