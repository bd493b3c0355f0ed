"""SSH tunnels from the control plane to dev servers, for Jupyter only.

The SSH login `jupyter` reaches Jupyter and nothing else. One connection per dev server carries all its tunnels, and
closes when it has been idle for a while. Callers have checked who may use a tunnel.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import asyncssh

from gpudev.domain.errors import Unavailable
from gpudev.domain.reservations.reservation import SshEndpoint

_LOGIN = "jupyter"
_KEEPALIVE_SECONDS = 15
_IDLE_SECONDS = 60.0
SshReader = asyncssh.SSHReader[bytes]
SshWriter = asyncssh.SSHWriter[bytes]
_TunnelKey = tuple[SshEndpoint, str]


@dataclass
class _SharedConnection:
    connecting: "asyncio.Task[asyncssh.SSHClientConnection]"
    users: int = 0
    close_timer: asyncio.TimerHandle | None = field(default=None, repr=False)

    @property
    def has_ended(self) -> bool:
        """It failed or was closed, and cannot carry another tunnel."""
        task = self.connecting
        if not task.done():
            return False
        return task.cancelled() or task.exception() is not None or task.result().is_closed()


class SshTunnels:
    def __init__(self, find_address: Callable[[SshEndpoint], Awaitable[str]], seconds: float) -> None:
        """`find_address`: returns the checked address of a dev server. `seconds`: how long connecting may take."""
        self._find_address = find_address
        self._seconds = seconds
        self._connections: dict[_TunnelKey, _SharedConnection] = {}

    async def close(self) -> None:
        for key, shared in list(self._connections.items()):
            self._close_connection(key, shared)

    @asynccontextmanager
    async def open_tunnel(self, endpoint: SshEndpoint, private_key: str) -> AsyncIterator[tuple[SshReader, SshWriter]]:
        """To the dev server's Jupyter. Raises Unavailable, also when the connection breaks during use, and what
        `find_address` raises."""
        key = (endpoint, private_key)
        shared = self._connections.get(key)
        if shared is None or shared.has_ended:
            connecting = asyncio.create_task(self._connect(endpoint, private_key))
            shared = self._connections[key] = _SharedConnection(connecting)
        self._acquire(shared)
        try:
            connection = await asyncio.shield(shared.connecting)
            reader, writer = await connection.open_connection(_LOGIN, 0)
            try:
                yield reader, writer
            finally:
                writer.channel.abort()
        except asyncssh.ChannelOpenError as error:
            raise Unavailable("Jupyter does not answer; `gpu-dev jupyter status` shows its state") from error
        except (OSError, asyncssh.Error) as error:
            raise Unavailable(f"the connection to Jupyter was lost: {error}") from error
        finally:
            self._release(key, shared)

    async def _connect(self, endpoint: SshEndpoint, private_key: str) -> asyncssh.SSHClientConnection:
        try:
            async with asyncio.timeout(self._seconds):
                return await asyncssh.connect(
                    await self._find_address(endpoint),
                    endpoint.port,
                    username=_LOGIN,
                    client_keys=[asyncssh.import_private_key(private_key)],
                    # Only its own host key, whatever its address is.
                    known_hosts=([asyncssh.import_public_key(endpoint.host_key)], [], []),
                    server_host_key_algs=["ssh-ed25519"],
                    config=None,
                    agent_path=None,
                    agent_forwarding=False,
                    keepalive_interval=_KEEPALIVE_SECONDS,
                    encryption_algs=["aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes256-ctr"],
                )
        except TimeoutError as error:
            raise Unavailable("the dev server does not answer in time") from error

    def _acquire(self, shared: _SharedConnection) -> None:
        shared.users += 1
        if shared.close_timer is not None:
            shared.close_timer.cancel()
            shared.close_timer = None

    def _release(self, key: _TunnelKey, shared: _SharedConnection) -> None:
        shared.users -= 1
        if not shared.users:
            loop = asyncio.get_running_loop()
            shared.close_timer = loop.call_later(_IDLE_SECONDS, self._close_connection, key, shared)

    def _close_connection(self, key: _TunnelKey, shared: _SharedConnection) -> None:
        """The key may have a newer connection already; that one stays."""
        if self._connections.get(key) is shared:
            del self._connections[key]
        if shared.close_timer is not None:
            shared.close_timer.cancel()
        if not shared.connecting.done():
            shared.connecting.cancel()
        elif not shared.has_ended:
            shared.connecting.result().close()
