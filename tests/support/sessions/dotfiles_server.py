"""A git repository of somebody's dotfiles, served over HTTP."""

import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from support.local.outside_host import listen_outside

URL = "https://git.example.com/ada/dotfiles.git"
"""As people name it; `environment` sends git elsewhere instead."""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it has there
        return None


class DotfilesServer:
    def __init__(self, folder: Path, address: tuple[str, int]) -> None:
        self._work, self._bare = folder / "work", folder / "served" / "ada" / "dotfiles.git"
        self.environment = {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"url.http://{address[0]}:{address[1]}/.insteadOf",
            "GIT_CONFIG_VALUE_0": "https://git.example.com/",
            "GIT_ALLOW_PROTOCOL": "http:https",
        }

    def publish(self, files: Mapping[str, str]) -> None:
        """A commit with these files, those named *.sh executable."""
        if not self._bare.exists():
            _git("init", "-q", "-b", "main", str(self._work))
            _git("init", "-q", "--bare", "-b", "main", str(self._bare))
        for name, text in files.items():
            path = self._work / name
            path.write_text(text)
            path.chmod(0o755 if name.endswith(".sh") else 0o644)
        _git("-C", str(self._work), "add", "-A")
        _git("-C", str(self._work), "commit", "-q", "-m", "dotfiles")
        _git("-C", str(self._work), "push", "-q", str(self._bare), "main")
        _git("-C", str(self._bare), "update-server-info")


@contextlib.contextmanager
def serve_dotfiles(folder: Path) -> Iterator[DotfilesServer]:
    handler = partial(_Quiet, directory=str(folder / "served"))
    with listen_outside() as listener, _serve(listener, handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield DotfilesServer(folder, listener.getsockname())
        finally:
            server.shutdown()
            thread.join()


def _serve(listener: socket.socket, handler: Any) -> ThreadingHTTPServer:
    """On a socket that listens already."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    return server


def _git(*arguments: str) -> None:
    names = {f"GIT_{who}_{what}": "ada@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**os.environ, **names, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    subprocess.run(["git", *arguments], check=True, env=environment, capture_output=True, timeout=30)
