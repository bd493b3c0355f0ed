"""Port forwarding: where forwarded connections may go, and where remote listeners may listen."""

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import asyncssh

from gpudev.domain.addresses import is_metadata_address, parse_address

LOOPBACK = "127.0.0.1"


async def connect_if_allowed(host: str, port: int, closed_ports: frozenset[int]) -> asyncssh.SSHTCPSession[bytes]:
    """Forward to any address but cloud metadata addresses and this machine's closed ports.

    A name is resolved once, and the connection uses the addresses that were checked: a second lookup might return
    others.
    """
    try:
        found = await _resolve(host, port)
    except (OSError, UnicodeError) as error:
        raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, str(error)) from error
    failure = asyncssh.ChannelOpenError(
        asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, "forwarding to this address is not allowed"
    )
    for family, _, _, _, address in found:
        if _is_closed(family, str(address[0]), port, closed_ports):
            continue
        try:
            return await _forward(str(address[0]), port)
        except asyncssh.ChannelOpenError as error:
            failure = error
    raise failure


async def _resolve(host: str, port: int) -> Sequence[tuple[Any, ...]]:
    """A numeric address, in any notation, is parsed directly. Only names are looked up, in a thread."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


def _is_closed(family: int, address: str, port: int, closed_ports: frozenset[int]) -> bool:
    return is_metadata_address(parse_address(address)) or (port in closed_ports and is_this_machine(family, address))


async def connect_to_jupyter(port: int | None) -> asyncssh.SSHTCPSession[bytes]:
    if port is None:
        raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "Jupyter is not running")
    return await _forward(LOOPBACK, port)


async def _forward(address: str, port: int) -> asyncssh.SSHTCPSession[bytes]:
    try:
        _, peer = await asyncio.get_running_loop().create_connection(asyncssh.SSHForwarder, address, port)
    except OSError as error:
        raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, str(error)) from error
    return cast("asyncssh.SSHTCPSession[bytes]", _Forwarder(peer))  # as asyncssh itself uses it


class _Forwarder(asyncssh.SSHForwarder):
    """The client's side of a forwarded connection.

    When the other side ends first, asyncssh expects the client to close the channel, and `ssh -W` expects the server
    to: the connection would stay open for ever.
    """

    def eof_received(self) -> bool:
        keep_open = super().eof_received()
        if not keep_open:
            self.close()  # buffered data still arrives
        return keep_open


def is_this_machine(family: int, address: str) -> bool:
    """Only an address of this machine, or the wildcard address, can be bound."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True


async def listen_on_loopback(connection: asyncssh.SSHServerConnection, host: str, port: int) -> asyncssh.SSHListener:
    """A remote listener (-R). It listens on the loopback interface, whatever address was requested."""
    return await connection.forward_local_port(LOOPBACK, port, host, port)


async def listen_on_path(connection: asyncssh.SSHServerConnection, path: str) -> asyncssh.SSHListener | bool:
    """A remote listener on a unix socket. It replaces the socket of a lost connection, but none that is in use."""
    if await _is_in_use(path):
        return False
    listener = await connection.forward_local_path(path, path)
    _restrict_to_owner(path)
    return listener


def _restrict_to_owner(path: str) -> None:
    Path(path).chmod(0o600)


async def _is_in_use(path: str) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except OSError:
        return False
    writer.close()
    return True
