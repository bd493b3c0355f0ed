"""What stands between browsers and Jupyter, put together: within the API's process, or in the proxy's."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlsplit

from starlette.types import ASGIApp

from gpudev.adapters.ssh_tunnels import SshWays
from gpudev.http_edge.audit import AuditTrail
from gpudev.ports.clock import Clock
from gpudev.ports.proxying import ProxyTokenStore
from gpudev.ports.reservations import ReservationStore
from gpudev.ports.sessions import JupyterKeys
from gpudev.proxy.dev_server_connector import Targets
from gpudev.proxy.jupyter.guard import JupyterGuard
from gpudev.proxy.jupyter.http_proxy import JupyterDoor, JupyterPages
from gpudev.proxy.jupyter.websocket_proxy import JupyterSockets
from gpudev.proxy.ssh.sessions import Sessions
from gpudev.proxy.switching import Switch
from gpudev.settings import Settings
from gpudev.workflows.sessions.jupyter_access import Browsing
from gpudev.workflows.sessions.ssh_tokens import Proxying

SESSION_TTL = timedelta(hours=24)
"""How long a browser that was let in may come back; the reservation's end is another."""


@dataclass(frozen=True, slots=True)
class ServingJupyter:
    door: JupyterDoor
    sockets: JupyterSockets

    def before(self, app: ASGIApp) -> ASGIApp:
        return JupyterPages(app, self.door, round(SESSION_TTL.total_seconds()))

    def beside(self, sessions: Sessions, **_: object) -> asyncio.Protocol:
        """The protocol of one client's connection that asks for a WebSocket."""
        return Switch(sessions.tunnel, self.sockets.socket)


@contextlib.asynccontextmanager
async def serving_jupyter(
    settings: Settings,
    reservations: ReservationStore,
    tokens: ProxyTokenStore,
    keys: JupyterKeys,
    *,
    trail: AuditTrail,
    clock: Clock,
) -> AsyncIterator[ServingJupyter]:
    targets = Targets.of(settings)
    ways = SshWays(targets.find_address, settings.proxy.connect_timeout.total_seconds())
    proxying = Proxying(reservations, tokens, clock, settings.proxy.token_ttl)
    guard = JupyterGuard(trail, clock, settings.guarding, settings.proxy.most_per_user)
    door = JupyterDoor(Browsing(tokens, keys, clock, SESSION_TTL), ways, guard, _own_names(settings))
    sockets = JupyterSockets(door, proxying, settings.proxy)
    sockets.start()
    try:
        yield ServingJupyter(door, sockets)
    finally:
        await sockets.close()
        await ways.close()


def _own_names(settings: Settings) -> frozenset[str]:
    """Hosts by which people know us, where something on the way names another."""
    return frozenset({*settings.server_names, urlsplit(settings.proxy.url).netloc} - {""})
