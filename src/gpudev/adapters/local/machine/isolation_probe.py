"""Finds the isolation modes that work on this system, by trying each in a short-lived process.

Whether namespaces work depends on the kernel, its settings, security modules and the surrounding container. No file
shows all of that.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from gpudev.adapters.local.machine import linux, namespaces
from gpudev.adapters.local.machine.isolation import (
    MAX_USERS,
    UID_INSIDE,
    IsolationMode,
    IsolationResult,
    candidate_modes,
    first_user_uid,
    user_uid,
)
from gpudev.adapters.local.machine.launch_spec import LaunchSpec

_SPACE_BYTES = 64 * 1024


def probe_isolation(state_dir: Path, requested: IsolationMode | None) -> IsolationResult:
    """The best mode that works, or the requested one. Raises OSError when the requested one does not work, or when the
    state folder cannot be written: a full disk must not weaken the isolation."""
    rejections: list[str] = []
    candidates = (requested,) if requested is not None else candidate_modes(os.geteuid() == 0, linux.IS_LINUX)
    for mode in candidates:
        problem = probe_mode(mode, state_dir)
        if problem is None:
            return IsolationResult(mode, tuple(rejections))
        rejections.append(problem)
    raise OSError(f"isolation mode {requested} does not work here: {'; '.join(rejections)}")


def probe_mode(mode: IsolationMode, state_dir: Path) -> str | None:
    """Why the mode does not work. None: it works. Raises OSError when that cannot be found out."""
    if mode is IsolationMode.PLAIN:
        return None
    folder = Path(tempfile.mkdtemp(prefix="probe-", dir=state_dir))
    try:
        for name in ("home", "workspace", "run", "root", "tmp", "var-tmp"):
            (folder / name).mkdir()
        folder.chmod(0o755)  # mkdtemp's 0700 is not part of the test
        (folder / "space").write_bytes(bytes(_SPACE_BYTES))  # raises: a full disk says nothing about the mode
        return _run_in_child(lambda: _enter_and_exec(_probe_launch(mode, folder), folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _probe_launch(mode: IsolationMode, folder: Path) -> LaunchSpec:
    return LaunchSpec(
        mode=mode,
        uid=user_uid(MAX_USERS, first_user_uid()) if mode.has_own_uid else UID_INSIDE,
        hostname="probe",
        hostnames=("probe",),
        home=str(folder / "home"),
        workspace=str(folder / "workspace"),
        run=str(folder / "run"),
        host_key="",
    )


def _enter_and_exec(launch: LaunchSpec, folder: Path) -> None:
    """Every step of a dev server's start, up to running a shell."""
    if launch.mode is IsolationMode.USER:
        namespaces.enter_user_namespace(launch.uid)
    if launch.mode.has_namespaces:
        namespaces.unshare_all()
    problem = _run_in_child(lambda: _become_shell(launch, folder))
    if problem is not None:
        raise OSError(problem)


def _become_shell(launch: LaunchSpec, folder: Path) -> None:
    if launch.mode.has_namespaces:
        namespaces.build_root(launch, folder)
        namespaces.drop_privileges(launch)
    else:
        namespaces.drop_privileges(launch)
        _check_reachable(launch.home)
    os.execv("/bin/sh", ["sh", "-c", "exit 0"])


def _check_reachable(folder: str) -> None:
    """A user's own uid is useless where it cannot reach the state folder."""
    try:
        os.chdir(folder)
    except PermissionError as error:
        raise PermissionError(error.errno, "other uids cannot reach the state folder") from error


def _run_in_child(act: Callable[[], None]) -> str | None:
    """Call `act` in a forked process. Returns the error's text; None: no error."""
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()  # closed by exec
    child = os.fork()
    if child == 0:
        exit_code = 1
        try:
            os.close(reading)
            act()
            exit_code = 0
        except BaseException as error:  # noqa: BLE001 - nothing else can report it
            text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            os.write(writing, text.encode())
        finally:
            os._exit(exit_code)  # a forked process must never run on in its parent's code
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if status == 0:
        return None
    return text or f"the test process ended with status {status}"
