"""Listening sockets for the members' SSH servers, opened ahead of need.

Where the network is shared, a user of the machine can take every port there is. What is open already, nobody can take.
"""

import contextlib
import errno
import socket
import threading

from gpudev.domain.errors import ClusterError, Unavailable

_BACKLOG = 128
_NO_PORT = (errno.EADDRINUSE, errno.EMFILE, errno.ENFILE, errno.ENOBUFS)
"""Another time there may be one."""


class SshListeners:
    def __init__(self, host: str, count: int, mark: int | None = None) -> None:
        """`mark`: the mark of all packets that these sockets send, for the firewall. None: no mark."""
        self.host = host
        self._count = count
        self._mark = mark
        self._lock = threading.Lock()
        self._ready: list[socket.socket] = []
        self._closed = False

    def fill(self) -> None:
        """Open as many as should be ready, or as many as can be had."""
        with self._lock, contextlib.suppress(OSError):
            while len(self._ready) < self._count and not self._closed:
                self._ready.append(self._listen(0))

    def take(self, earlier_port: int | None) -> socket.socket:
        """On the earlier port if that is free. Raises Unavailable when no port is free."""
        try:
            return self._take(earlier_port)
        except OSError as error:
            if error.errno in _NO_PORT:
                raise Unavailable(f"no port is free for ssh on {self.host}") from error
            raise ClusterError(f"cannot listen for ssh on {self.host}: {error.strerror}") from error
        finally:
            self.fill()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            unused, self._ready = self._ready, []
        for listener in unused:
            listener.close()

    def _take(self, earlier_port: int | None) -> socket.socket:
        if earlier_port is not None:
            try:
                return self._listen(earlier_port)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
        with self._lock:
            if self._ready:
                return self._ready.pop()
        return self._listen(0)

    def _listen(self, port: int) -> socket.socket:
        family, kind, protocol, _, address = socket.getaddrinfo(self.host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self._mark is not None:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, self._mark)
            listener.bind(address)
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
        return listener
