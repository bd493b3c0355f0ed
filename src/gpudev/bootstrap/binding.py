"""Listening sockets for doors beside a service's own."""

import socket

from gpudev.domain.errors import Unavailable
from gpudev.domain.listening import ListenAddress

_BACKLOG = 2048


def bind_socket(address: ListenAddress) -> socket.socket:
    """Raises Unavailable, in words, where nothing can listen."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise Unavailable(f"{address.host} is no address of this machine: {error.strerror}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise Unavailable(f"nothing can listen on {address}: {error.strerror}") from error
    return listener
