"""The proxy's parts: within the API's process, or as a service of its own."""

import contextlib
from collections.abc import AsyncIterator

from gpudev.adapters.postgres.stores import open_stores
from gpudev.api.dependencies import ApiDependencies
from gpudev.bootstrap.jupyter import JupyterProxy, open_jupyter_proxy
from gpudev.bootstrap.observability import HealthAndMetrics
from gpudev.bootstrap.service_runtime import check_schema
from gpudev.http_edge.audit import AuditTrail
from gpudev.ports.clock import SystemClock
from gpudev.proxy.dev_server_connector import DevServerConnector
from gpudev.proxy.ssh.handshake import SessionGuard
from gpudev.proxy.ssh.sessions import SshSessions
from gpudev.settings import Settings
from gpudev.workflows.sessions.ssh_tokens import SshTokens


@contextlib.asynccontextmanager
async def open_ssh_sessions(services: ApiDependencies) -> AsyncIterator[SshSessions]:
    """Beside the API, so that one port is enough."""
    settings = services.settings
    proxying = SshTokens(services.reservations, services.proxy_tokens, services.clock, settings.proxy.token_ttl)
    guard = SessionGuard(proxying, services.trail, services.clock, settings.guarding)
    async with _started_sessions(
        SshSessions(proxying, guard, DevServerConnector.from_settings(settings), settings.proxy)
    ) as sessions:
        yield sessions


@contextlib.asynccontextmanager
async def open_proxy(settings: Settings) -> AsyncIterator[tuple[HealthAndMetrics, SshSessions, JupyterProxy]]:
    """A service of its own: its sessions, Jupyter, and what tells how it is."""
    stores, clock = open_stores(settings, max_connections=4), SystemClock()
    proxying = SshTokens(stores.reservations, stores.proxy_tokens, clock, settings.proxy.token_ttl)
    trail = AuditTrail(stores.audit_log, clock)
    guard = SessionGuard(proxying, trail, clock, settings.guarding)
    trail.start()
    try:
        async with (
            _started_sessions(
                SshSessions(proxying, guard, DevServerConnector.from_settings(settings), settings.proxy)
            ) as sessions,
            open_jupyter_proxy(
                settings, stores.reservations, stores.proxy_tokens, stores.addons, trail=trail, clock=clock
            ) as jupyter,
        ):
            yield (
                HealthAndMetrics(watchdog=sessions.watchdog, check_ready=lambda: check_schema(stores)),
                sessions,
                jupyter,
            )
    finally:
        await trail.close()  # after the sessions: their ends are in it
        await stores.close()


@contextlib.asynccontextmanager
async def _started_sessions(sessions: SshSessions) -> AsyncIterator[SshSessions]:
    sessions.start()
    try:
        yield sessions
    finally:
        await sessions.close()
