"""Runs one PostgreSQL program as an unprivileged user. Run by path, as root, stdlib only.

PostgreSQL refuses to run as root, and its own user may not be able to reach a folder below a home with mode 0700. So
the program runs in a private mount namespace, in which the binaries and the data folder are bind-mounted on short,
reachable paths. Where mounting is not allowed (most containers), unreachable binaries are copied, and the data folder
is the working directory.

It takes one JSON argument (`UnprivilegedRun`) and execs the program, so the pid stays the same.
"""

import ctypes
import json
import os
import shutil
import stat
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

_CLONE_NEWNS = 0x00020000
_MS_RDONLY, _MS_NOSUID, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_SLAVE = 1, 2, 32, 4096, 16384, 1 << 19
_COPY_IGNORE = shutil.ignore_patterns("*.a", "*.py", "__pycache__", "include", "pginstall18")
_WORKING_DIRECTORY = "/proc/self/cwd"
DATA_PLACEHOLDER = "{data}"
"""Placeholder in the arguments for the data folder's path as the program sees it."""


@dataclass(frozen=True)
class UnprivilegedRun:
    uid: int
    gid: int
    packages: list[str]
    """The folders the program needs; its libraries are in a sibling folder."""
    program: str
    """Its path, relative to the packages' parent folder."""
    arguments: list[str]
    data: str
    view: str
    """A folder that every user can reach, for the mount points."""
    environment: dict[str, str]

    def command(self) -> list[str]:
        return [sys.executable, "-I", "-S", __file__, json.dumps(asdict(self))]


def main(text: str) -> None:
    run = UnprivilegedRun(**json.loads(text))
    os.umask(0o022)  # files created here must be readable for another user
    if _enter_mount_namespace():
        install, data = _bind_mounts(run)
        os.chdir("/")
    else:
        install, data = _reachable_install(run), _WORKING_DIRECTORY
        os.chdir(run.data)
    os.setgroups([])
    os.setgid(run.gid)
    os.setuid(run.uid)
    program = f"{install}/{run.program}"
    arguments = [argument.replace(DATA_PLACEHOLDER, data) for argument in run.arguments]
    os.execve(program, [program, *arguments], run.environment)


def _enter_mount_namespace() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    # "slave": later unmounts of the machine take effect here, and our mounts are invisible to others.
    return bool(libc.unshare(_CLONE_NEWNS) == 0 and libc.mount(b"none", b"/", None, _MS_REC | _MS_SLAVE, None) == 0)


def _bind_mounts(run: UnprivilegedRun) -> tuple[str, str]:
    view = Path(run.view)
    for package in map(Path, run.packages):
        target = view / "install" / package.name
        _mount(package, target, _MS_BIND)
        _mount(package, target, _MS_BIND | _MS_REMOUNT | _MS_RDONLY | _MS_NOSUID)
    _mount(Path(run.data), view / "data", _MS_BIND)
    return str(view / "install"), str(view / "data")


def _mount(source: Path, target: Path, flags: int) -> None:
    target.mkdir(mode=0o755, parents=True, exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(bytes(source), bytes(target), None, flags, None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot mount {source} on {target}: {os.strerror(number)}")


def _reachable_install(run: UnprivilegedRun) -> str:
    packages = [Path(package) for package in run.packages]
    if all(_others_can_reach(package) for package in packages):
        return str(packages[0].parent)
    copy = Path(run.view) / "copy"
    if not copy.exists():
        partial = Path(tempfile.mkdtemp(dir=run.view, prefix="copy-"))
        for package in packages:
            shutil.copytree(package, partial / package.name, ignore=_COPY_IGNORE)
        partial.chmod(0o755)
        partial.rename(copy)
    return str(copy)


def _others_can_reach(folder: Path) -> bool:
    return all(step.stat().st_mode & stat.S_IXOTH for step in (folder, *folder.resolve().parents))


if __name__ == "__main__":
    main(sys.argv[1])
