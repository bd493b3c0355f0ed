"""sftp: the system's own sftp-server where there is one, else asyncssh's in a child process.

It runs in a child, because opening a named pipe or a dead network mount blocks, and must not block other sessions.
"""

import gc
import os
import pwd
from collections.abc import Coroutine, Iterable
from typing import Any, cast

import asyncssh
from asyncssh.logging import SSHLogger
from asyncssh.logging import logger as asyncssh_logger
from asyncssh.sftp import SFTPServerHandler

_PROTOCOL_VERSION = 3  # what OpenSSH's clients speak


def find_sftp_server(paths: Iterable[str]) -> str | None:
    """None: use asyncssh's."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:  # a uid without a name, for which OpenSSH's server does not run
        return None
    return next((path for path in paths if os.access(path, os.X_OK)), None)


def serve_sftp(client_version: str) -> None:
    """Serve on the standard descriptors until the client ends. For a child process: it blocks."""
    gc.freeze()  # collecting our parent's garbage here would close descriptors by number, which are ours now
    pipe = _Pipe(client_version)
    server = _Files(cast("asyncssh.SSHServerChannel[bytes]", pipe))
    handler = SFTPServerHandler(server, cast(Any, pipe), cast(Any, pipe), _PROTOCOL_VERSION)
    _drive(handler.run())


def _drive(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that never suspends: it only uses the pipe, which blocks.

    So it needs no event loop. None could be started cleanly in a child that was forked from within one.
    """
    try:
        work.send(None)
    except (StopIteration, EOFError):
        return
    raise RuntimeError("the sftp server waited for something that is not its pipe")


class _Files(asyncssh.SFTPServer):
    """Shows uids and gids as numbers: a name lookup may need a lock that a thread of our parent held at the fork."""

    def format_user(self, uid: int | None) -> str:
        return str(uid)

    def format_group(self, gid: int | None) -> str:
        return str(gid)


class _Pipe:
    """Replaces the reader, the writer and the channel that asyncssh's sftp server expects."""

    logger: SSHLogger = asyncssh_logger

    def __init__(self, client_version: str) -> None:
        self._client_version = client_version

    @property
    def channel(self) -> "_Pipe":
        return self

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self._client_version if name == "client_version" else default

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass

    async def readexactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = os.read(0, size - len(data))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(1, rest) :]
