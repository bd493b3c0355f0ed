"""API and proxy as two processes behind one port: each passes on the connections that the other one serves.

Only the API listens for clients. The bytes of proxied sessions are parsed in the proxy's event loop, so whatever users
make of them costs the API nothing. docs/adr/0015 gives the reasons.
"""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import cast

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from gpudev.api.dependencies import ApiDependencies
from gpudev.api.http.handover_protocol import HandoverHttpProtocol, HandoverRule, handover_http_protocol
from gpudev.bootstrap.listeners import GracefulServer
from gpudev.bootstrap.proxy import JupyterProxy, open_jupyter_proxy, open_ssh_sessions, public_server_config
from gpudev.domain.errors import Unavailable
from gpudev.http_edge.connection_handover import ConnectionReceiver, ConnectionSender, ReceivedConnection
from gpudev.http_edge.handover_sockets import API_SOCKET, PROXY_SOCKET
from gpudev.http_edge.html_pages import wants_html
from gpudev.metrics.loop_watchdog import LoopWatchdog
from gpudev.proxy.jupyter.headers import find_jupyter_path
from gpudev.proxy.jupyter.http_proxy import jupyter_error_response
from gpudev.proxy.ssh.handshake import handshake_error
from gpudev.proxy.ssh.sessions import SshSessions
from gpudev.settings import RequestGuardSettings, Settings

_NO_PROXY = "the proxy is restarting; try again in a moment"
_NO_API = "the API is restarting; try again in a moment"


def is_jupyter(path: str) -> bool:
    return find_jupyter_path(path) is not None


@contextlib.asynccontextmanager
async def open_api_server(
    app: FastAPI, services: ApiDependencies, folder: Path | None
) -> AsyncIterator[tuple[GracefulServer, LoopWatchdog | None]]:
    """The API's server. The proxy is a process of its own, reached through `folder`, or within this one (None)."""
    settings, on_stop = services.settings, app.state.stopping.set
    if folder is not None:
        async with open_api_beside_proxy(app, folder, settings, on_stop) as server:
            yield server, None
        return
    async with (
        open_ssh_sessions(services) as sessions,
        open_jupyter_proxy(
            settings,
            services.reservations,
            services.proxy_tokens,
            services.jupyter_keys,
            trail=services.trail,
            clock=services.clock,
        ) as jupyter,
    ):
        config = jupyter.server_config(app, sessions, settings.api_host, settings.api_port, settings.guarding)
        yield GracefulServer(config, on_stop), sessions.watchdog


@contextlib.asynccontextmanager
async def open_api_beside_proxy(
    app: ASGIApp, folder: Path, settings: Settings, on_stop: Callable[[], object] = lambda: None
) -> AsyncIterator[GracefulServer]:
    """Requests for Jupyter and all WebSockets go to the proxy."""
    with contextlib.closing(ConnectionSender(folder / PROXY_SOCKET)) as sender:
        rule = HandoverRule(sender, is_jupyter, passes_upgrades=True)
        config = public_server_config(
            _OtherProcessApp(_NO_PROXY, app),
            handover_http_protocol(rule),
            _RejectedUpgrade,
            host=settings.api_host,
            port=settings.api_port,
            limits=settings.guarding,
        )
        with _serve_received(config, folder / API_SOCKET, on_stop) as server:
            yield server


@contextlib.asynccontextmanager
async def open_proxy_beside_api(
    jupyter: JupyterProxy, sessions: SshSessions, folder: Path, limits: RequestGuardSettings
) -> AsyncIterator[GracefulServer]:
    """Without a listener of its own. Requests that are not for Jupyter go back to the API."""
    with contextlib.closing(ConnectionSender(folder / API_SOCKET)) as sender:
        rule = HandoverRule(sender, lambda path: not is_jupyter(path), passes_upgrades=False)
        config = public_server_config(
            jupyter.wrap_app(_OtherProcessApp(_NO_API)),
            handover_http_protocol(rule),
            partial(jupyter.make_protocol, sessions),
            host="",
            port=0,
            limits=limits,
        )
        with _serve_received(config, folder / PROXY_SOCKET) as server:
            yield server


@contextlib.contextmanager
def _serve_received(
    config: uvicorn.Config, path: Path, on_stop: Callable[[], object] = lambda: None
) -> Iterator[GracefulServer]:
    """A server that also serves the connections that the other process passes on. When it is told to stop, the other
    process gets an error instead of passing on more."""
    loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()
    config.load()

    def stop() -> None:
        receiver.close()
        on_stop()

    async def serve(received: ReceivedConnection) -> None:
        def make_protocol() -> HandoverHttpProtocol:
            make = cast(type[HandoverHttpProtocol], config.http_protocol_class)
            protocol = make(config=config, server_state=server.server_state, app_state={})
            protocol.take_over(received)
            return protocol

        try:
            await loop.connect_accepted_socket(make_protocol, received.connection)
        except OSError:  # the client has gone
            received.connection.close()

    def accept(received: ReceivedConnection) -> None:
        serving = loop.create_task(serve(received))
        tasks.add(serving)
        serving.add_done_callback(tasks.discard)

    server = GracefulServer(config, stop)
    with contextlib.closing(ConnectionReceiver(path, accept)) as receiver:
        yield server


class _OtherProcessApp:
    """Answers requests of the other process that could not be passed on. `app` has all others; None: there are none."""

    def __init__(self, message: str, app: ASGIApp | None = None) -> None:
        self._message = message
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is not None and (scope["type"] != "http" or not is_jupyter(scope["path"])):
            await self._app(scope, receive, send)
            return
        error = Unavailable(self._message)
        response = jupyter_error_response(error, uuid.uuid4().hex, wants_html(scope["headers"]))
        response.headers["Connection"] = "close"  # the next connection is passed on
        await response(scope, receive, send)


class _RejectedUpgrade(asyncio.Protocol):
    """A WebSocket that could not be passed on."""

    def __init__(self, **_: object) -> None:
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(handshake_error(Unavailable(_NO_PROXY), uuid.uuid4().hex).serialize())
            self._transport.close()
