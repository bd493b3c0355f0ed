"""Finds out what this system allows by doing it, once, in a process that ends right after.

Whether namespaces work depends on the kernel, its settings, security modules and the container around it, and no
file tells all of that.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from gpudev.adapters.local.machine import linux, namespaces
from gpudev.adapters.local.machine.isolation import (
    UID_INSIDE,
    USERS_FORESEEN,
    Finding,
    Mode,
    candidates,
    first_uid,
    uid_of,
)
from gpudev.adapters.local.machine.launch_spec import Launch


def find_mode(state_dir: Path, asked: Mode | None) -> Finding:
    """The best way that works here; or the one asked for, when it works."""
    refused: list[str] = []
    ways = (asked,) if asked is not None else candidates(os.geteuid() == 0, linux.IS_LINUX)
    for mode in ways:
        problem = try_out(mode, state_dir)
        if problem is None:
            return Finding(mode, tuple(refused))
        refused.append(problem)
    raise OSError(f"dev servers cannot be started as asked ({asked}): {'; '.join(refused)}")


def try_out(mode: Mode, state_dir: Path) -> str | None:
    """None when it works, else what was refused."""
    if mode is Mode.PLAIN:
        return None
    folder = Path(tempfile.mkdtemp(prefix="probe-", dir=state_dir))
    try:
        for name in ("home", "workspace", "run", "root", "tmp", "var-tmp"):
            (folder / name).mkdir()
        folder.chmod(0o755)  # mkdtemp's 0700 is not what is tried out here
        return _in_child(lambda: _live_through(_example(mode, folder), folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _example(mode: Mode, folder: Path) -> Launch:
    return Launch(
        mode=mode,
        uid=uid_of(USERS_FORESEEN, first_uid()) if mode.has_own_uid else UID_INSIDE,
        hostname="probe",
        hostnames=("probe",),
        home=str(folder / "home"),
        workspace=str(folder / "workspace"),
        run=str(folder / "run"),
        host_key="",
    )


def _live_through(launch: Launch, folder: Path) -> None:
    """All a dev server goes through, up to running a shell."""
    if launch.mode is Mode.USER:
        namespaces.enter_user_namespace(launch.uid)
    if launch.mode.has_namespaces:
        namespaces.unshare_all()
    problem = _in_child(lambda: _become_shell(launch, folder))
    if problem is not None:
        raise OSError(problem)


def _become_shell(launch: Launch, folder: Path) -> None:
    if launch.mode.has_namespaces:
        namespaces.build_root(launch, folder)
        namespaces.drop_privileges(launch)
    else:
        namespaces.drop_privileges(launch)
        _check_reachable(launch.home)
    os.execv("/bin/sh", ["sh", "-c", "exit 0"])


def _check_reachable(folder: str) -> None:
    """An own uid is no use where the state folder cannot be reached."""
    try:
        os.chdir(folder)
    except PermissionError as error:
        raise PermissionError(error.errno, "other uids cannot pass through to the state folder") from error


def _in_child(act: Callable[[], None]) -> str | None:
    """Do it in a forked process; what went wrong, in words."""
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()  # closed by exec
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            act()
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - a forked process must never run on in its parent's code
            words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            os.write(writing, words.encode())
        os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        words = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if status == 0:
        return None
    return words or f"the test process ended with status {status}"
