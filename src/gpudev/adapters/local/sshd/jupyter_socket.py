"""The unix socket between a dev server's SSH server and its Jupyter.

Other users of the machine can take any TCP port, and would get the token of whoever connects there. So Jupyter listens
in a folder that only its user may enter, and nothing is sent before the peer is known to be that user.
"""

import asyncio
import os
import shutil
import socket
import stat
import struct
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

_MAX_PATH_BYTES = 100
"""Linux accepts 107 bytes, macOS 103."""
_FOLDER_PREFIX = "j"  # short: the member's own tmp folder has a long path already
_SOCKET = "s"
_RANDOM_LETTERS = 8  # of tempfile
_PEER_CREDENTIALS = struct.Struct("3i")


def candidate_parents(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Where the socket's folder may be, best first."""
    parents = (environment.get("XDG_RUNTIME_DIR"), environment.get("TMPDIR"), "/tmp")
    return tuple(parent for parent in parents if parent)


def make_socket_path(parents: Iterable[str]) -> str:
    """A path for a socket in a new folder with an unpredictable name: nothing can be there yet. Raises OSError."""
    failure = OSError(0, "no folder with a short enough path for a socket")
    for parent in parents:
        if len(os.fsencode(parent)) + _RANDOM_LETTERS + len(f"/{_FOLDER_PREFIX}/{_SOCKET}") > _MAX_PATH_BYTES:
            continue
        try:
            return str(Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX, dir=parent), _SOCKET))
        except OSError as error:  # a full or missing folder
            failure = error
    raise failure


def remove_socket_folder(path: str) -> None:
    shutil.rmtree(Path(path).parent, ignore_errors=True)


async def connect_to_own_socket(path: str) -> socket.socket:
    """Raises OSError, also when somebody else could listen there."""
    check_own_socket(path, os.geteuid())
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, path)
        _check_peer(client, os.geteuid())
    except BaseException:
        client.close()
        raise
    return client


def check_own_socket(path: str, uid: int) -> None:
    """Raises OSError unless `path` is a socket of this user, in a folder that only this user may enter."""
    folder, found = os.lstat(Path(path).parent), os.lstat(path)
    if not stat.S_ISDIR(folder.st_mode) or folder.st_uid != uid or stat.S_IMODE(folder.st_mode) & 0o077:
        raise PermissionError(0, "others may enter the folder of Jupyter's socket")
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != uid:
        raise PermissionError(0, "the file in place of Jupyter's socket is not a socket of this user")


def _check_peer(client: socket.socket, uid: int) -> None:
    if not sys.platform.startswith("linux"):
        return  # the folder's permissions remain
    credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    if _PEER_CREDENTIALS.unpack(credentials)[1] != uid:
        raise PermissionError(0, "another user listens on Jupyter's socket")


def exists(path: str) -> bool:
    with suppress(OSError):
        os.lstat(path)
        return True
    return False
