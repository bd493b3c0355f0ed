"""Ways into dev servers for the control plane itself: ssh, as a guest who is led to Jupyter and nowhere else.

One connection for each dev server carries all that goes there at a time; it ends when nothing has gone there for a
while. Who may use a way was decided before.
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
        """Nothing can go this way any more."""
        task = self.connecting
        if not task.done():
            return False
        return task.cancelled() or task.exception() is not None or task.result().is_closed()


class SshTunnels:
    def __init__(self, find_address: Callable[[SshEndpoint], Awaitable[str]], seconds: float) -> None:
        """`find_address`: where a dev server is, checked. `seconds`: how long connecting may take."""
        self._find_address = find_address
        self._seconds = seconds
        self._connections: dict[_TunnelKey, _SharedConnection] = {}

    async def close(self) -> None:
        for way, opened in list(self._connections.items()):
            self._close_connection(way, opened)

    @asynccontextmanager
    async def open_tunnel(self, to: SshEndpoint, private_key: str) -> AsyncIterator[tuple[SshReader, SshWriter]]:
        """To its Jupyter. Raises Unavailable, also when the way breaks while it is used, and what `find_address`
        raises."""
        key = (to, private_key)
        opened = self._connections.get(key)
        if opened is None or opened.has_ended:
            opened = self._connections[key] = _SharedConnection(asyncio.create_task(self._connect(to, private_key)))
        self._acquire(opened)
        try:
            connection = await asyncio.shield(opened.connecting)
            reader, writer = await connection.open_connection(_LOGIN, 0)
            try:
                yield reader, writer
            finally:
                writer.channel.abort()
        except asyncssh.ChannelOpenError as error:
            raise Unavailable("Jupyter does not answer; `gpu-dev jupyter status` tells how it is") from error
        except (OSError, asyncssh.Error) as error:
            raise Unavailable(f"the way to Jupyter broke: {error}") from error
        finally:
            self._release(key, opened)

    async def _connect(self, to: SshEndpoint, private_key: str) -> asyncssh.SSHClientConnection:
        try:
            async with asyncio.timeout(self._seconds):
                return await asyncssh.connect(
                    await self._find_address(to),
                    to.port,
                    username=_LOGIN,
                    client_keys=[asyncssh.import_private_key(private_key)],
                    # Its own host key, whatever its address is.
                    known_hosts=([asyncssh.import_public_key(to.host_key)], [], []),
                    server_host_key_algs=["ssh-ed25519"],
                    config=None,
                    agent_path=None,
                    agent_forwarding=False,
                    keepalive_interval=_KEEPALIVE_SECONDS,
                    encryption_algs=["aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes256-ctr"],
                )
        except TimeoutError as error:
            raise Unavailable("the dev server does not answer in time") from error

    def _acquire(self, opened: _SharedConnection) -> None:
        opened.users += 1
        if opened.close_timer is not None:
            opened.close_timer.cancel()
            opened.close_timer = None

    def _release(self, key: _TunnelKey, opened: _SharedConnection) -> None:
        opened.users -= 1
        if not opened.users:
            loop = asyncio.get_running_loop()
            opened.close_timer = loop.call_later(_IDLE_SECONDS, self._close_connection, key, opened)

    def _close_connection(self, key: _TunnelKey, opened: _SharedConnection) -> None:
        """It ends; another may have taken its place."""
        if self._connections.get(key) is opened:
            del self._connections[key]
        if opened.close_timer is not None:
            opened.close_timer.cancel()
        if not opened.connecting.done():
            opened.connecting.cancel()
        elif not opened.has_ended:
            opened.connecting.result().close()
