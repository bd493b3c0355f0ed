"""Starts SSH servers as dev servers get them: forked from a warm process, after which no module can be imported.

Reads requests from standard input, one JSON object per line: a configuration (answered with port and pid) or
{"stop": pid}. Every import that is attempted after the fork is written to the file `late_imports`.
"""

import importlib.abc
import importlib.machinery
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

from gpudev.adapters.local.sshd.server import preload, run_sshd
from gpudev.adapters.local.sshd.sshd_config import SshdConfig


class NothingToFind(importlib.abc.MetaPathFinder):
    def __init__(self, log: str) -> None:
        self._log = log

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        with open(self._log, "a") as file:
            file.write(f"{fullname}\n")
        return None


def be_a_careless_parent() -> None:
    """Leave to the server what it must not pass on."""
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGTSTP, signal.SIGTTOU, signal.SIGCHLD):
        signal.signal(ignored, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGWINCH])
    os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)


def main() -> None:
    preload()
    be_a_careless_parent()
    for line in sys.stdin:
        request = json.loads(line)
        answer = stop(request["stop"]) if "stop" in request else start(request)
        print(json.dumps(answer), flush=True)


def start(request: dict[str, Any]) -> dict[str, float]:
    late_imports = request.pop("late_imports")
    request["closed_ports"] = frozenset(request.get("closed_ports", ()))
    config = SshdConfig(**request)
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        started = time.monotonic()
        pid = os.fork()
        if pid == 0:
            forget_how_to_import(late_imports)
            run_sshd(config, listener)
            os._exit(1)
        with socket.create_connection(listener.getsockname()) as first:
            first.recv(1)
        milliseconds = (time.monotonic() - started) * 1000
        return {"port": listener.getsockname()[1], "pid": pid, "milliseconds": milliseconds}


def forget_how_to_import(late_imports: str) -> None:
    sys.path[:] = []
    sys.path_hooks[:] = []
    sys.path_importer_cache.clear()
    sys.meta_path[:] = [NothingToFind(late_imports)]


def stop(pid: int) -> dict[str, float]:
    os.kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):  # its end is ignored, but waited for
        os.waitpid(pid, 0)
    return {}


if __name__ == "__main__":
    main()
