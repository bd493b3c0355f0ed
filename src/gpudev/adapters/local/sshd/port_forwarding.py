"""Where forwarded connections may go and where remote listeners may be."""

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import asyncssh

from gpudev.domain.addresses import is_metadata_address, parse_address

LOOPBACK = "127.0.0.1"


async def connect_if_allowed(host: str, port: int, closed_ports: frozenset[int]) -> asyncssh.SSHTCPSession[bytes]:
    """Forward to wherever the client wants, but never to where clouds tell secrets and not to this machine's closed
    ports. A name is looked up once and the addresses found are used, so that it cannot mean one thing when asked and
    another when connected."""
    try:
        found = await _resolve(host, port)
    except (OSError, UnicodeError) as error:
        raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, str(error)) from error
    failure = asyncssh.ChannelOpenError(asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, "no connection is made to there")
    for family, _, _, _, address in found:
        if _is_closed(family, str(address[0]), port, closed_ports):
            continue
        try:
            return await _forward(str(address[0]), port)
        except asyncssh.ChannelOpenError as error:
            failure = error
    raise failure


async def _resolve(host: str, port: int) -> Sequence[tuple[Any, ...]]:
    """A number, however it is spelt, is known at once; only names are asked for, on a thread."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


def _is_closed(family: int, address: str, port: int, closed_ports: frozenset[int]) -> bool:
    return is_metadata_address(parse_address(address)) or (port in closed_ports and is_this_machine(family, address))


async def connect_to_jupyter(port: int | None) -> asyncssh.SSHTCPSession[bytes]:
    if port is None:
        raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "Jupyter does not run here")
    return await _forward(LOOPBACK, port)


async def _forward(address: str, port: int) -> asyncssh.SSHTCPSession[bytes]:
    try:
        _, there = await asyncio.get_running_loop().create_connection(asyncssh.SSHForwarder, address, port)
    except OSError as error:
        raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, str(error)) from error
    return cast("asyncssh.SSHTCPSession[bytes]", _Forwarder(there))  # as asyncssh itself uses it


class _Forwarder(asyncssh.SSHForwarder):
    """The client's side of a connection. Where the other side ends before the client does, asyncssh leaves it to the
    client to close the channel, and `ssh -W` leaves it to the server: it would stay for ever."""

    def eof_received(self) -> bool:
        goes_on = super().eof_received()
        if not goes_on:
            self.close()  # what is still on its way arrives
        return goes_on


def is_this_machine(family: int, address: str) -> bool:
    """Only an address of this machine can be bound (and the one that means all of them)."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True


async def listen_on_loopback(connection: asyncssh.SSHServerConnection, host: str, port: int) -> asyncssh.SSHListener:
    """A remote listener (-R). Whatever address was asked for, only this machine can reach it."""
    return await connection.forward_local_port(LOOPBACK, port, host, port)


async def listen_on_path(connection: asyncssh.SSHServerConnection, path: str) -> asyncssh.SSHListener | bool:
    """A remote listener on a unix socket. One left behind by a lost connection is replaced; one in use is not."""
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
