"""Passes a client's connection to another process of this machine, with the bytes that were read from it.

The receiver listens on a unix socket that only this user can open. A plain connection is passed itself (SCM_RIGHTS),
and the sender has nothing to do with it any more. A connection that only this process can serve, because of its TLS or
because written bytes are still waiting, is relayed: the receiver gets one end of a socket pair. A relay copies bytes
and interprets none.
"""

import asyncio
import errno
import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import structlog

from gpudev.http_edge.handover_sockets import short_path

log = structlog.get_logger(__name__)
_BACKLOG = 2048
_MAX_MESSAGE_BYTES = 64 * 1024
"""Fits into a socket's send buffer, so that a message is sent at once or not at all."""
_RECEIVE_SECONDS = 10.0
_RETRY_SECONDS = 1.0
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_HIGH_WATER, _LOW_WATER = 256 * 1024, 64 * 1024
_DRAIN_SECONDS = 30.0
"""How long the remaining side of a relay has to take the last bytes."""


@dataclass(frozen=True, slots=True)
class ClientOrigin:
    """How a client reached this machine. A relayed connection does not show it."""

    client: tuple[str, int] | None
    """None: the client came over a unix socket."""
    scheme: str


@dataclass(frozen=True, slots=True)
class ReceivedConnection:
    connection: socket.socket
    origin: ClientOrigin
    data: bytes
    """What the sender has already read."""


# The sender


class ConnectionSender:
    def __init__(self, receiver: Path) -> None:
        """`receiver`: the socket of the process that gets the connections."""
        self._receiver = receiver
        self._relays: set[_Relay] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def pass_on(self, transport: asyncio.Transport, origin: ClientOrigin, data: bytes) -> bool:
        """The transport is then closed here, or belongs to a relay. False: the receiver is not there, and nothing has
        changed."""
        if _can_be_passed(transport, data):
            descriptor = transport.get_extra_info("socket").fileno()
            if not self._send(descriptor, origin, data):
                return False
            transport.abort()  # closes this process's descriptor only; the connection stays open
            return True
        near, far = socket.socketpair()
        with far:
            if not self._send(far.fileno(), origin, b""):
                near.close()
                return False
        self._start_relay(transport, near, data)
        return True

    def close(self) -> None:
        """Ends all relays."""
        for relay in list(self._relays):
            relay.abort()

    def _send(self, descriptor: int, origin: ClientOrigin, data: bytes) -> bool:
        head = {"client": origin.client, "scheme": origin.scheme, "length": len(data)}
        message = json.dumps(head).encode() + b"\n" + data
        try:
            with socket.socket(socket.AF_UNIX) as line, short_path(self._receiver) as address:
                line.setblocking(False)  # a receiver that hangs does not stop this process
                line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _MAX_MESSAGE_BYTES)
                line.connect(address)
                return socket.send_fds(line, [message], [descriptor]) == len(message)
        except OSError as error:
            log.warning("handover.failed", receiver=self._receiver.name, error=str(error))
            return False

    def _start_relay(self, transport: asyncio.Transport, near: socket.socket, data: bytes) -> None:
        relay = _Relay(self._relays.discard)
        self._relays.add(relay)
        relay.attach_client(transport, data)
        connecting = asyncio.get_running_loop().create_task(relay.connect(near))
        self._tasks.add(connecting)
        connecting.add_done_callback(self._tasks.discard)


def _can_be_passed(transport: asyncio.Transport, data: bytes) -> bool:
    is_plain = transport.get_extra_info("sslcontext") is None
    return is_plain and transport.get_write_buffer_size() == 0 and len(data) < _MAX_MESSAGE_BYTES - 1024


class _Relay:
    """Copies bytes between a client and one end of a socket pair. Neither side is read while the other one is full."""

    def __init__(self, on_end: Callable[["_Relay"], None]) -> None:
        self._on_end = on_end
        self._client = _RelaySide()
        self._receiver = _RelaySide()
        self._client.other, self._receiver.other = self._receiver, self._client
        self._receiver.on_end = lambda: on_end(self)

    def attach_client(self, transport: asyncio.Transport, data: bytes) -> None:
        """Data that arrives before the receiver's side is connected is kept."""
        transport.set_protocol(self._client)
        self._client.connection_made(transport)
        transport.pause_reading()
        self._receiver.write(data)

    async def connect(self, near: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: self._receiver, near)
        except OSError as error:
            log.warning("handover.relay_failed", error=str(error))
            near.close()
            self.abort()
            self._on_end(self)
            return
        if self._client.is_lost:
            self._receiver.close()
        elif not self._receiver.is_full:
            self._client.resume_reading()

    def abort(self) -> None:
        self._client.abort()
        self._receiver.abort()


class _RelaySide(asyncio.Protocol):
    other: "_RelaySide"

    def __init__(self) -> None:
        self.on_end: Callable[[], None] = lambda: None
        self.is_lost = False
        self.is_full = False
        self._transport: asyncio.Transport | None = None
        self._early = b""
        self._abort_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(_HIGH_WATER, _LOW_WATER)
        if self._early:
            self._transport.write(self._early)
            self._early = b""

    def data_received(self, data: bytes) -> None:
        self.other.write(data)

    def pause_writing(self) -> None:
        self.is_full = True
        self.other.pause_reading()

    def resume_writing(self) -> None:
        self.is_full = False
        self.other.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        self.other.close()
        self.on_end()

    def write(self, data: bytes) -> None:
        if self._transport is None:
            self._early += data
        elif not self._transport.is_closing():
            self._transport.write(data)

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """When the last bytes are delivered; a side that does not take them is aborted after a while."""
        if self._transport is not None and not self.is_lost:
            self._transport.close()
            self._abort_timer = asyncio.get_running_loop().call_later(_DRAIN_SECONDS, self._transport.abort)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


# The receiver


class ConnectionReceiver:
    """Listens at `path`, which is replaced: a killed process leaves its socket behind. `accept` owns what it gets."""

    def __init__(self, path: Path, accept: Callable[[ReceivedConnection], None]) -> None:
        self._path = path
        self._accept = accept
        self._listener = _listen(path)
        self._incoming: set[_IncomingConnection] = set()
        self._resume()

    def close(self) -> None:
        """Senders get an error from now on. Idempotent."""
        if self._listener.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._path.unlink(missing_ok=True)
        for connection in list(self._incoming):
            connection.discard()

    def _accept_line(self) -> None:
        try:
            line, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _EXHAUSTED:  # the line waits, and would wake this loop all the time
                log.error("handover.exhausted", error=str(error))
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._listener)
                loop.call_later(_RETRY_SECONDS, self._resume)
            return
        self._incoming.add(_IncomingConnection(line, self._accept, self._incoming.discard))

    def _resume(self) -> None:
        if self._listener.fileno() >= 0:
            asyncio.get_running_loop().add_reader(self._listener, self._accept_line)


class _IncomingConnection:
    """Reads one message: a line of JSON, the bytes that the sender has read, and the descriptor."""

    def __init__(
        self,
        line: socket.socket,
        accept: Callable[[ReceivedConnection], None],
        on_end: Callable[["_IncomingConnection"], None],
    ) -> None:
        self._line = line
        self._accept = accept
        self._on_end = on_end
        self._message = b""
        self._sockets: list[socket.socket] = []
        line.setblocking(False)
        loop = asyncio.get_running_loop()
        loop.add_reader(line, self._read)
        self._timer = loop.call_later(_RECEIVE_SECONDS, self.discard)

    def _read(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._line, 2 * _MAX_MESSAGE_BYTES, 1)
        except BlockingIOError:
            return
        except OSError:
            self.discard()
            return
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
            self._sockets.append(socket.socket(fileno=descriptor))
        self._message += data
        if not data:
            self._finish()

    def _finish(self) -> None:
        received = _parse_message(self._message, self._sockets)
        if received is None:
            if self._message:  # nothing at all: `is_received`
                log.warning("handover.incomplete", bytes=len(self._message), descriptors=len(self._sockets))
            self.discard()
            return
        self._sockets = []
        self.discard()
        self._accept(received)

    def discard(self) -> None:
        """Idempotent."""
        self._timer.cancel()
        if self._line.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._line)
            self._line.close()
        for unused in self._sockets:
            unused.close()
        self._on_end(self)


def _parse_message(message: bytes, sockets: list[socket.socket]) -> ReceivedConnection | None:
    """None: the sender did not send everything."""
    head, _, data = message.partition(b"\n")
    try:
        match json.loads(head):
            case {"client": client, "scheme": str(scheme), "length": int(length)} if (
                length == len(data) and len(sockets) == 1
            ):
                address = (str(client[0]), int(client[1])) if client else None
                return ReceivedConnection(sockets[0], ClientOrigin(address, scheme), data)
    except (ValueError, TypeError, IndexError):
        pass
    return None


def _listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)
    try:
        with short_path(path) as address:
            listener.bind(address)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(mask)
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener
