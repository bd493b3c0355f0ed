"""Child processes of the SSH server, each in its own session, with only its three descriptors.

A child runs a function after the fork, because asyncssh's sftp server is a part of this process and not a program.
All others end in `execute`.
"""

import asyncio
import fcntl
import os
import resource
import signal
import termios
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NoReturn

from gpudev import rlimits

_EXIT_CANNOT_RUN = 126
_FIRST_FREE_FD = 3
_MAX_FDS = 1 << 20


class ChildWatcher:
    """Reports the end of children. One signal handler for all works on every system; pidfds are Linux only."""

    def __init__(self) -> None:
        self._ended: dict[int, Callable[[int], None]] = {}
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)

    def watch(self, pid: int, ended: Callable[[int], None]) -> None:
        """`ended` is called once with the wait status."""
        self._ended[pid] = ended

    def _reap(self) -> None:
        for pid in list(self._ended):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self._ended.pop(pid)(status)


def spawn(work: Callable[[], object], stdio: tuple[int, int, int], *, home: str, on_terminal: bool) -> int:
    """Fork a child that calls `work` in `home`. Returns its pid. Raises OSError when the fork fails."""
    pid = os.fork()
    if pid:
        return pid
    exit_code = _EXIT_CANNOT_RUN
    try:
        _become_child(stdio, home, on_terminal)
        work()
        exit_code = 0
    except BaseException as error:  # noqa: BLE001 - nothing else can report it
        _write_error(error)
    finally:
        os._exit(exit_code)  # a fork must never return into its parent's frames


def execute(program: str, argv: list[bytes], environment: Mapping[bytes, bytes]) -> NoReturn:
    os.execve(program, argv, environment)


def reset_signals() -> None:
    """Reset all handlers and unblock all signals: ignored signals would be inherited through exec."""
    for number in signal.valid_signals():
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            with suppress(OSError, ValueError):  # two signals belong to the C library
                signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _become_child(stdio: tuple[int, int, int], home: str, on_terminal: bool) -> None:
    signal.set_wakeup_fd(-1)  # our signals must not reach our parent's event loop
    reset_signals()
    os.setsid()
    for target, fd in enumerate(stdio):
        os.dup2(fd, target)
    if on_terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.closerange(_FIRST_FREE_FD, _fd_limit())
    rlimits.restore_open_files_limit()
    os.umask(0o022)
    enter_home(home)


def _fd_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(soft, _MAX_FDS) if soft > 0 else _MAX_FDS  # negative: unlimited


def enter_home(home: str) -> None:
    try:
        os.chdir(home)
    except OSError:
        os.chdir("/")


def _write_error(error: BaseException) -> None:
    with suppress(OSError):
        os.write(2, f"cannot start: {error}\r\n".encode(errors="replace"))
