"""Builds the proxy for ssh and Jupyter, within the API's process or as a separate process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from urllib.parse import urlsplit

import uvicorn
from starlette.types import ASGIApp

from gpudev.adapters.postgres.stores import open_stores
from gpudev.adapters.ssh_tunnels import SshTunnels
from gpudev.api.dependencies import ApiDependencies
from gpudev.api.http.connection_limits import limited_http_protocol
from gpudev.bootstrap.observability import HealthAndMetrics
from gpudev.bootstrap.service_runtime import DatabaseReadiness
from gpudev.http_edge.audit import AuditTrail
from gpudev.ports.clock import Clock, SystemClock
from gpudev.ports.reservations import ReservationStore
from gpudev.ports.sessions import JupyterSecretStore, ProxyTokenStore
from gpudev.proxy.dev_server_connector import CONNECT_TIMEOUT, DevServerConnector
from gpudev.proxy.jupyter.guard import JupyterGuard
from gpudev.proxy.jupyter.http_proxy import JupyterAccess, JupyterHttpProxy
from gpudev.proxy.jupyter.websocket_proxy import JupyterWebSockets, WebSocketSwitch
from gpudev.proxy.ssh.handshake import SessionGuard
from gpudev.proxy.ssh.sessions import SILENT_FOR, SshSessions
from gpudev.settings import RequestGuardSettings, Settings
from gpudev.workflows.sessions.jupyter_access import BrowserSessions
from gpudev.workflows.sessions.ssh_tokens import GRANT_CHECK_EVERY, SshTokens

BROWSER_SESSION_TTL = timedelta(hours=24)
"""How long a browser session lasts, unless the reservation ends first."""


@dataclass(frozen=True, slots=True)
class JupyterProxy:
    access: JupyterAccess
    sockets: JupyterWebSockets

    def wrap_app(self, app: ASGIApp) -> ASGIApp:
        return JupyterHttpProxy(app, self.access, round(BROWSER_SESSION_TTL.total_seconds()))

    def make_protocol(self, sessions: SshSessions, peer: str | None = None, **_: object) -> asyncio.Protocol:
        """The protocol of a connection with a WebSocket upgrade. `peer`: the client's address, if the connection does
        not show it."""
        return WebSocketSwitch(partial(sessions.make_tunnel, peer), partial(self.sockets.make_socket, peer))

    def server_config(
        self, app: ASGIApp, sessions: SshSessions, host: str, port: int, limits: RequestGuardSettings
    ) -> uvicorn.Config:
        """A public server with this app, Jupyter and ssh."""
        return public_server_config(
            self.wrap_app(app),
            limited_http_protocol(),
            partial(self.make_protocol, sessions),
            host=host,
            port=port,
            limits=limits,
        )


def public_server_config(
    app: ASGIApp,
    http: type[asyncio.Protocol],
    ws: Callable[..., asyncio.Protocol],
    *,
    host: str,
    port: int,
    limits: RequestGuardSettings,
) -> uvicorn.Config:
    """`ws`: makes the protocol of a connection with a WebSocket upgrade."""
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        http=http,
        ws=ws,  # type: ignore[arg-type]  # any protocol factory works
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="warning",
        timeout_graceful_shutdown=2,
        timeout_keep_alive=round(limits.keep_alive.total_seconds()),
        limit_concurrency=limits.max_connections,
        server_header=False,
        proxy_headers=False,
    )


@contextlib.asynccontextmanager
async def open_jupyter_proxy(
    settings: Settings,
    reservations: ReservationStore,
    tokens: ProxyTokenStore,
    keys: JupyterSecretStore,
    *,
    trail: AuditTrail,
    clock: Clock,
) -> AsyncIterator[JupyterProxy]:
    targets = DevServerConnector.from_settings(settings)
    tunnels = SshTunnels(targets.resolve_address, CONNECT_TIMEOUT.total_seconds())
    ssh_tokens = SshTokens(reservations, tokens, clock)
    guard = JupyterGuard(trail, clock, settings.guarding.trusted_proxies, settings.proxy.most_per_user)
    access = JupyterAccess(
        BrowserSessions(tokens, keys, clock, BROWSER_SESSION_TTL), tunnels, guard, _own_hosts(settings)
    )
    sockets = JupyterWebSockets(access, ssh_tokens, settings.proxy)
    sockets.start()
    try:
        yield JupyterProxy(access, sockets)
    finally:
        await sockets.close()
        await tunnels.close()


def _own_hosts(settings: Settings) -> frozenset[str]:
    """Public host names of this server, for reverse proxies that replace Host."""
    return frozenset({*settings.server_names, urlsplit(settings.proxy.url).netloc} - {""})


# The ssh proxy.


@contextlib.asynccontextmanager
async def open_ssh_sessions(
    services: ApiDependencies, *, check_every: timedelta = GRANT_CHECK_EVERY, silent_for: timedelta = SILENT_FOR
) -> AsyncIterator[SshSessions]:
    """Within the API's process, on the same port."""
    settings = services.settings
    ssh_tokens = SshTokens(services.reservations, services.proxy_tokens, services.clock)
    wrong_tokens = services.request_limits.wrong_keys
    guard = SessionGuard(ssh_tokens, services.trail, services.clock, settings.guarding.trusted_proxies, wrong_tokens)
    connector = DevServerConnector.from_settings(settings)
    async with _started_sessions(
        SshSessions(ssh_tokens, guard, connector, settings.proxy, check_every=check_every, silent_for=silent_for)
    ) as sessions:
        yield sessions


@contextlib.asynccontextmanager
async def open_proxy(settings: Settings) -> AsyncIterator[tuple[HealthAndMetrics, SshSessions, JupyterProxy]]:
    """As a separate service: health, ssh sessions and Jupyter."""
    stores, clock = open_stores(settings, max_connections=4), SystemClock()
    ssh_tokens = SshTokens(stores.reservations, stores.proxy_tokens, clock)
    trail = AuditTrail(stores.audit_log, clock)
    guard = SessionGuard(ssh_tokens, trail, clock, settings.guarding.trusted_proxies)
    trail.start()
    try:
        async with (
            _started_sessions(
                SshSessions(ssh_tokens, guard, DevServerConnector.from_settings(settings), settings.proxy)
            ) as sessions,
            open_jupyter_proxy(
                settings, stores.reservations, stores.proxy_tokens, stores.addons, trail=trail, clock=clock
            ) as jupyter,
        ):
            yield (
                HealthAndMetrics(watchdog=sessions.watchdog, check_ready=DatabaseReadiness(stores).check),
                sessions,
                jupyter,
            )
    finally:
        await trail.close()  # after the sessions, whose ends are audited
        await stores.close()


@contextlib.asynccontextmanager
async def _started_sessions(sessions: SshSessions) -> AsyncIterator[SshSessions]:
    sessions.start()
    try:
        yield sessions
    finally:
        await sessions.close()
