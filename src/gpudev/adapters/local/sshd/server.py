"""The SSH server: logins, the policy of connections, port forwarding, and disconnection of revoked keys."""

import asyncio
import base64
import gc
import importlib
import os
import signal
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import asyncssh

from gpudev import rlimits
from gpudev.adapters.local.sshd import asyncssh_compat
from gpudev.adapters.local.sshd.channel_session import ChannelSession, SshdContext, choose_shell
from gpudev.adapters.local.sshd.child_process import ChildWatcher, enter_home, reset_signals
from gpudev.adapters.local.sshd.command_exit import CommandExitWatch
from gpudev.adapters.local.sshd.jupyter import JUPYTER_LOGIN, JupyterSupervisor
from gpudev.adapters.local.sshd.jupyter_socket import connect_to_own_socket
from gpudev.adapters.local.sshd.sshd_config import SshdConfig, WatchedFile
from gpudev.adapters.local.sshd.terminal_messages import TerminalMessages
from gpudev.domain.addresses import is_metadata_address, parse_address


class KeySessions:
    """The connections of each key. Reads the list of keys only while there are connections."""

    def __init__(self, authorized_keys_path: str) -> None:
        self._authorized_keys = WatchedFile(authorized_keys_path)
        self._connections: dict[asyncssh.SSHServerConnection, str] = {}

    def add_connection(self, connection: asyncssh.SSHServerConnection, key_data: bytes) -> None:
        self._connections[connection] = base64.b64encode(key_data).decode()

    def remove_connection(self, connection: asyncssh.SSHServerConnection) -> None:
        self._connections.pop(connection, None)

    def disconnect_revoked(self) -> None:
        """Disconnect clients whose key is not in the list any more.

        While the list cannot be read, all logins fail and open connections stay.
        """
        if not self._connections:
            return
        text = self._authorized_keys.read_if_changed()
        if text is None:
            return
        known = set(text.split())
        for connection, key in list(self._connections.items()):
            if key not in known:
                connection.disconnect(asyncssh.DISC_BY_APPLICATION, "your key may not log in any more")


_MAX_PENDING_LOGINS = 500
"""Far more than real users need at the same time."""
_KEEPALIVES_UNANSWERED = 10
_BACKLOG = 1024
_COLLECT_AFTER_SECONDS = 0.5
_POLL_SECONDS = 0.5
_YOUNG_GARBAGE = 1
_EXIT_PARENT_GONE = 1
# Without chacha20-poly1305, OpenSSH's first choice: it carries a third as many bytes per second in Python.
_CIPHERS = ["aes256-gcm@openssh.com", "aes128-gcm@openssh.com", "aes256-ctr", "aes192-ctr", "aes128-ctr"]
_LATE_IMPORTS = ("encodings.idna", "encodings.ascii", "concurrent.futures.thread", "pwd", "grp", "stringprep")


def preload() -> None:
    """Import everything that `run_sshd` will ever need: it runs where no module can be imported."""
    for module in _LATE_IMPORTS:
        importlib.import_module(module)
    if sys.platform == "darwin":
        return  # a name lookup starts threads there, and processes forked after that cannot look up names
    with suppress(OSError):
        socket.getaddrinfo("localhost", 0)  # the C library loads parts of itself at first use too


def run_sshd(config: SshdConfig, *listeners: socket.socket) -> None:
    """Serve on listening sockets until killed. It takes over the process: call it in a fork of its own."""
    _reset_process(config)
    asyncio.run(_serve(config, listeners))


def _reset_process(config: SshdConfig) -> None:
    """Reset what was inherited from the parent process."""
    for fd in (0, 1, 2):
        _ensure_open(fd)
    rlimits.raise_open_files_limit()
    reset_signals()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    warnings.simplefilter("ignore")
    os.umask(0o022)
    enter_home(config.home)
    tempfile.tempdir = config.environment.get("TMPDIR", "/tmp")


def _ensure_open(fd: int) -> None:
    """A closed standard descriptor would be reused by the next pipe, and then overwritten in the child."""
    try:
        os.fstat(fd)
    except OSError:
        os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one


async def _serve(config: SshdConfig, listeners: Sequence[socket.socket]) -> None:
    loop = asyncio.get_running_loop()
    if config.lifeline is not None:
        loop.add_reader(config.lifeline, os._exit, _EXIT_PARENT_GONE)
    context = SshdContext(config, TerminalMessages(config.messages_path), ChildWatcher())
    logins, key_sessions = PendingLogins(), KeySessions(config.authorized_keys_path)
    jupyter = JupyterSupervisor(config, lambda: choose_shell(config), context.children)
    options = asyncssh.SSHServerConnectionOptions(
        server_factory=lambda: ConnectionPolicy(context, logins, key_sessions, jupyter),
        server_version=asyncssh_compat.SERVER_VERSION,
        server_host_keys=[asyncssh.import_private_key(config.host_key)],
        encryption_algs=_CIPHERS,
        password_auth=False,
        kbdint_auth=False,
        host_based_auth=False,
        gss_host=None,
        agent_forwarding=True,
        x11_forwarding=False,
        line_editor=False,
        encoding=None,
        login_timeout=config.login_seconds,
        keepalive_interval=config.keepalive_seconds,
        keepalive_count_max=_KEEPALIVES_UNANSWERED,
    )
    servers = [
        await loop.create_server(
            lambda: asyncssh_compat.OpenSshConnection(loop, options), sock=listener, backlog=_BACKLOG
        )
        for listener in listeners
    ]
    polling = asyncio.create_task(_poll_forever(key_sessions, jupyter, CommandExitWatch(config)))
    await asyncio.gather(*(server.serve_forever() for server in servers), polling)


async def _poll_forever(key_sessions: KeySessions, jupyter: JupyterSupervisor, command_exit: CommandExitWatch) -> None:
    while True:
        key_sessions.disconnect_revoked()
        jupyter.reload()
        command_exit.check(time.monotonic())
        await asyncio.sleep(_POLL_SECONDS)


class PendingLogins:
    """Connections that have not logged in yet. Their number is limited.

    A new one replaces the oldest, so that a client that only holds connections open cannot block others.
    """

    def __init__(self) -> None:
        self._connections: dict[asyncssh.SSHServerConnection, None] = {}

    def add_connection(self, connection: asyncssh.SSHServerConnection) -> None:
        if len(self._connections) >= _MAX_PENDING_LOGINS:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.abort()
        self._connections[connection] = None

    def remove_connection(self, connection: asyncssh.SSHServerConnection) -> None:
        self._connections.pop(connection, None)


class ConnectionPolicy(asyncssh.SSHServer):
    """Decides what one connection may do."""

    def __init__(
        self, context: SshdContext, logins: PendingLogins, key_sessions: KeySessions, jupyter: JupyterSupervisor
    ) -> None:
        self._context = context
        self._logins = logins
        self._key_sessions = key_sessions
        self._jupyter = jupyter
        self._is_for_jupyter = False
        self._connection: asyncssh.SSHServerConnection

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._logins.add_connection(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        self._logins.remove_connection(self._connection)
        self._key_sessions.remove_connection(self._connection)
        # A forwarded connection that asyncio accepts just as its listener closes is lost with its socket open. Its
        # peer would wait until garbage collection, and an idle server does not collect.
        asyncio.get_running_loop().call_later(_COLLECT_AFTER_SECONDS, gc.collect, _YOUNG_GARBAGE)

    def begin_auth(self, username: str) -> bool:
        """Called once for each user name that the client tries. It uses the current keys."""
        config, keys = self._context.config, asyncssh.SSHAuthorizedKeys()
        self._is_for_jupyter = username == JUPYTER_LOGIN != config.username
        if username == config.username:
            keys = read_authorized_keys(config.authorized_keys_path)
        elif self._is_for_jupyter and self._jupyter.public_key is not None:
            keys.load(self._jupyter.public_key)
        self._connection.set_authorized_keys(keys)
        return True

    def auth_completed(self) -> None:
        self._logins.remove_connection(self._connection)
        key = self._connection.key_data if isinstance(self._connection, asyncssh_compat.OpenSshConnection) else None
        if key is not None and not self._is_for_jupyter:
            self._key_sessions.add_connection(self._connection, key)

    def public_key_auth_supported(self) -> bool:
        return True

    def session_requested(self) -> ChannelSession | bool:
        return False if self._is_for_jupyter else ChannelSession(self._context)

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> bool | Awaitable[asyncssh.SSHTCPSession[bytes]]:
        if self._is_for_jupyter:
            # It may connect to Jupyter only, whatever address it requests.
            return connect_to_jupyter(self._jupyter.socket_path)
        closed_ports = self._context.config.closed_ports
        return connect_if_allowed(dest_host, dest_port, closed_ports)

    def server_requested(self, listen_host: str, listen_port: int) -> bool | Awaitable[asyncssh.SSHListener]:
        return False if self._is_for_jupyter else listen_on_loopback(self._connection, listen_host, listen_port)

    def unix_connection_requested(self, dest_path: str) -> bool:
        return not self._is_for_jupyter

    def unix_server_requested(self, listen_path: str) -> bool | Awaitable[asyncssh.SSHListener | bool]:
        return False if self._is_for_jupyter else listen_on_path(self._connection, listen_path)


def read_authorized_keys(path: str) -> asyncssh.SSHAuthorizedKeys:
    """The keys that may log in now. An invalid line is ignored."""
    keys = asyncssh.SSHAuthorizedKeys()
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return keys
    for line in lines:
        with suppress(ValueError):
            keys.load(line)
    return keys


# Port forwarding: where forwarded connections may go, and where remote listeners may listen.


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


async def connect_to_jupyter(path: str | None) -> asyncssh.SSHTCPSession[bytes]:
    if path is None:
        raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "Jupyter is not running")
    try:
        client = await connect_to_own_socket(path)
        _, peer = await asyncio.get_running_loop().create_unix_connection(asyncssh.SSHForwarder, sock=client)
    except OSError as error:
        raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, str(error)) from error
    return _make_session(peer)


async def _forward(address: str, port: int) -> asyncssh.SSHTCPSession[bytes]:
    try:
        _, peer = await asyncio.get_running_loop().create_connection(asyncssh.SSHForwarder, address, port)
    except OSError as error:
        raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, str(error)) from error
    return _make_session(peer)


def _make_session(peer: asyncssh.SSHForwarder) -> asyncssh.SSHTCPSession[bytes]:
    return cast("asyncssh.SSHTCPSession[bytes]", _Forwarder(peer))  # as asyncssh itself uses it


class _Forwarder(asyncssh.SSHForwarder):
    """The client's side of a forwarded connection.

    When the other side ends first, asyncssh expects the client to close the channel, and `ssh -W` expects the server
    to: the connection would never close.
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
