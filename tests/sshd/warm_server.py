"""Starts an SSH server as a dev server gets it: forked from a warm process, after which no module can be imported.

Reads one JSON object from standard input, prints the port, and ends when standard input does. Every import that is
attempted after the fork is written to the file `late_imports`.
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
from types import ModuleType

from gpudev.adapters.local.sshd import SshdConfig, preload, run


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
    settings = json.loads(sys.stdin.readline())
    late_imports = settings.pop("late_imports")
    settings["refuse_forward_ports"] = frozenset(settings.get("refuse_forward_ports", ()))
    config = SshdConfig(**settings)
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    preload()
    be_a_careless_parent()
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        sys.path[:] = []
        sys.path_hooks[:] = []
        sys.path_importer_cache.clear()
        sys.meta_path[:] = [NothingToFind(late_imports)]
        run(config, listener)
        os._exit(1)
    with socket.create_connection(listener.getsockname()) as first:
        first.recv(1)
    milliseconds = (time.monotonic() - started) * 1000
    print(json.dumps({"port": listener.getsockname()[1], "pid": pid, "milliseconds": milliseconds}), flush=True)
    sys.stdin.read()
    os.kill(pid, signal.SIGKILL)  # ours until we end: ignored children vanish by themselves, but this one is alive


if __name__ == "__main__":
    main()
