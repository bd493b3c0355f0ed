"""API and proxy as on one machine: two servers behind one port, which pass connections on to each other. In a test they
share an event loop and otherwise nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.types import ASGIApp

from gpudev.bootstrap.handover import open_api_beside_proxy, open_proxy_beside_api
from gpudev.bootstrap.listeners import GracefulServer
from gpudev.bootstrap.proxy import JupyterProxy
from gpudev.proxy.ssh.sessions import SshSessions
from gpudev.settings import RequestGuardSettings, Settings
from support.polling import eventually_async


@asynccontextmanager
async def running_server(server: GracefulServer, **how: object) -> AsyncIterator[GracefulServer]:
    task = asyncio.create_task(server.serve(**how))  # type: ignore[arg-type]
    await eventually_async(lambda: server.started)
    try:
        yield server
    finally:
        server.should_exit = True
        await task


@asynccontextmanager
async def running_api(app: ASGIApp, folder: Path, settings: Settings) -> AsyncIterator[GracefulServer]:
    async with open_api_beside_proxy(app, folder, settings) as server, running_server(server):
        yield server


@asynccontextmanager
async def running_proxy(
    jupyter: JupyterProxy, sessions: SshSessions, folder: Path, limits: RequestGuardSettings
) -> AsyncIterator[GracefulServer]:
    async with open_proxy_beside_api(jupyter, sessions, folder, limits) as server, running_server(server, sockets=[]):
        yield server
