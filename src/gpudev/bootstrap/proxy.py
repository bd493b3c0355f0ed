"""The proxy's parts: within the API's process, or as a service of its own."""

import contextlib
from collections.abc import AsyncIterator

from gpudev.adapters.postgres.stores import open_stores
from gpudev.api.dependencies import Services
from gpudev.bootstrap.jupyter import ServingJupyter, serving_jupyter
from gpudev.bootstrap.observability import Eyes
from gpudev.bootstrap.service_runtime import check_schema
from gpudev.http_edge.audit import AuditTrail
from gpudev.ports.clock import SystemClock
from gpudev.proxy.dev_server_connector import Targets
from gpudev.proxy.ssh.handshake import SessionGuard
from gpudev.proxy.ssh.sessions import Sessions
from gpudev.settings import Settings
from gpudev.workflows.sessions.ssh_tokens import Proxying


@contextlib.asynccontextmanager
async def serving_sessions(services: Services) -> AsyncIterator[Sessions]:
    """Beside the API, so that one port is enough."""
    settings = services.settings
    proxying = Proxying(services.reservations, services.proxy_tokens, services.clock, settings.proxy.token_ttl)
    guard = SessionGuard(proxying, services.trail, services.clock, settings.guarding)
    async with _kept(Sessions(proxying, guard, Targets.of(settings), settings.proxy)) as sessions:
        yield sessions


@contextlib.asynccontextmanager
async def open_proxy(settings: Settings) -> AsyncIterator[tuple[Eyes, Sessions, ServingJupyter]]:
    """A service of its own: its sessions, Jupyter, and what tells how it is."""
    stores, clock = open_stores(settings, max_connections=4), SystemClock()
    proxying = Proxying(stores.reservations, stores.proxy_tokens, clock, settings.proxy.token_ttl)
    trail = AuditTrail(stores.audit_log, clock)
    guard = SessionGuard(proxying, trail, clock, settings.guarding)
    trail.start()
    try:
        async with (
            _kept(Sessions(proxying, guard, Targets.of(settings), settings.proxy)) as sessions,
            serving_jupyter(
                settings, stores.reservations, stores.proxy_tokens, stores.interiors, trail=trail, clock=clock
            ) as jupyter,
        ):
            yield Eyes(pulse=sessions.pulse, check_ready=lambda: check_schema(stores)), sessions, jupyter
    finally:
        await trail.close()  # after the sessions: their ends are in it
        await stores.close()


@contextlib.asynccontextmanager
async def _kept(sessions: Sessions) -> AsyncIterator[Sessions]:
    sessions.start()
    try:
        yield sessions
    finally:
        await sessions.close()
