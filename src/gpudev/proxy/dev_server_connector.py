"""Connects to dev servers only: addresses come from our records and are checked before each connection."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address

from gpudev.domain.errors import Unavailable
from gpudev.domain.reservations.reservation import SshEndpoint
from gpudev.planning.sessions import check_server_address
from gpudev.settings import Settings

CONNECT_TIMEOUT = timedelta(seconds=10)
"""How long a dev server may take to accept a connection. Short, because it is on the same network."""


@dataclass(frozen=True, slots=True)
class DevServerConnector:
    loopback_allowed: bool
    """Only where dev servers run on this machine."""
    own_addresses: Collection[tuple[str, int]]
    """Addresses of the control plane itself."""
    timeout: timedelta = CONNECT_TIMEOUT

    @classmethod
    def from_settings(cls, settings: Settings) -> "DevServerConnector":
        ours = settings.own_addresses
        if settings.cluster == "local":
            ours |= {("127.0.0.1", port) for _, port in ours} | {(settings.ssh_host, port) for _, port in ours}
        return cls(settings.cluster == "local", ours)

    async def connect(self, endpoint: SshEndpoint, protocol: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        """Resolves the name once, then checks and uses those addresses, which prevents DNS rebinding. Raises
        ClusterError for a forbidden address, Unavailable when the dev server does not answer."""
        try:
            async with asyncio.timeout(self.timeout.total_seconds()):
                addresses = await _resolve(endpoint)
                for address in addresses:
                    check_server_address(
                        address, endpoint.port, loopback_allowed=self.loopback_allowed, ours=self.own_addresses
                    )
                return await self._connect_first(addresses, endpoint.port, protocol)
        except (OSError, TimeoutError) as error:
            raise Unavailable(f"the dev server does not answer: {str(error) or 'in time'}") from error

    async def resolve_address(self, endpoint: SshEndpoint) -> str:
        """A checked address, for callers that connect themselves. Raises as `connect` does."""
        try:
            [address, *_] = await _resolve(endpoint)
        except OSError as error:
            raise Unavailable(f"the dev server's address cannot be resolved: {error}") from error
        check_server_address(address, endpoint.port, loopback_allowed=self.loopback_allowed, ours=self.own_addresses)
        return address

    async def _connect_first(
        self, addresses: list[str], port: int, protocol: Callable[[], asyncio.Protocol]
    ) -> asyncio.Transport:
        loop = asyncio.get_running_loop()
        *others, last = addresses
        for address in others:
            try:
                return (await loop.create_connection(protocol, address, port))[0]
            except OSError:
                continue
        return (await loop.create_connection(protocol, last, port))[0]


async def _resolve(endpoint: SshEndpoint) -> list[str]:
    """All its addresses. An address needs no resolver, whose few threads many connections at once would wait for."""
    with contextlib.suppress(ValueError):
        return [str(ip_address(endpoint.host))]
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
