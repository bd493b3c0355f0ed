"""Serving files: the system's own sftp-server where there is one, else asyncssh's, in a child process.

In a child, because opening a named pipe or a dead network mount blocks, and must block nobody's terminal.
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


def find_sftp_server(places: Iterable[str]) -> str | None:
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:  # a uid without a name, which OpenSSH's refuses to serve
        return None
    return next((place for place in places if os.access(place, os.X_OK)), None)


def serve_sftp(client_version: str) -> None:
    """Serve on the standard descriptors until the client is done. For a child process: it blocks."""
    gc.freeze()  # our parent's garbage must not be collected here: it would close descriptors by number, now ours
    pipe = _Pipe(client_version)
    server = _Files(cast("asyncssh.SSHServerChannel[bytes]", pipe))
    handler = SFTPServerHandler(server, cast(Any, pipe), cast(Any, pipe), _PROTOCOL_VERSION)
    _drive(handler.run())


def _drive(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that never waits: its only outside is the pipe, and that blocks. No event loop is needed,
    and none could be started cleanly in a child forked from within one."""
    try:
        work.send(None)
    except (StopIteration, EOFError):
        return
    raise RuntimeError("the sftp server waited for something that is not its pipe")


class _Files(asyncssh.SFTPServer):
    """Names only the owner: looking others up may need a lock that a thread of our parent held when we were forked."""

    def format_user(self, uid: int | None) -> str:
        return str(uid)

    def format_group(self, gid: int | None) -> str:
        return str(gid)


class _Pipe:
    """Stands in for the reader, the writer and the channel that asyncssh's sftp server expects."""

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
