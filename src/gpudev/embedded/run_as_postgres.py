"""Runs one PostgreSQL program as an unprivileged user. Run by path, as root, stdlib only.

PostgreSQL refuses to run as root, and the user it runs as instead may not be able to walk to a folder below somebody's
0700 home. So this gives the program a view of its own: a private mount namespace in which the binaries and the data
folder are bound to short, reachable places. Where mounting is not allowed (most containers) it takes a copy of the
binaries if they cannot be reached, and hands the data folder over as its working directory.

It takes one JSON argument (`Errand`) and becomes the program: the pid stays.
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
"""Stands in the arguments for wherever the program will see its data folder."""


@dataclass(frozen=True)
class UnprivilegedRun:
    uid: int
    gid: int
    packages: list[str]
    """The folders the program needs, side by side: its libraries lie beside it, not below it."""
    program: str
    """Its path, from where the packages lie."""
    arguments: list[str]
    data: str
    view: str
    """A folder every user can reach; the mount points lie in it."""
    environment: dict[str, str]

    def command(self) -> list[str]:
        return [sys.executable, "-I", "-S", __file__, json.dumps(asdict(self))]


def main(text: str) -> None:
    errand = UnprivilegedRun(**json.loads(text))
    os.umask(0o022)  # what is made here, another user reads
    if _enter_mount_namespace():
        install, data = _bind_mounts(errand)
        os.chdir("/")
    else:
        install, data = _reachable_install(errand), _WORKING_DIRECTORY
        os.chdir(errand.data)
    os.setgroups([])
    os.setgid(errand.gid)
    os.setuid(errand.uid)
    program = f"{install}/{errand.program}"
    arguments = [argument.replace(DATA_PLACEHOLDER, data) for argument in errand.arguments]
    os.execve(program, [program, *arguments], errand.environment)


def _enter_mount_namespace() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    # "slave": what the machine unmounts later must not stay busy because of us; what we mount is seen by nobody else.
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
        half = Path(tempfile.mkdtemp(dir=run.view, prefix="copy-"))
        for package in packages:
            shutil.copytree(package, half / package.name, ignore=_COPY_IGNORE)
        half.chmod(0o755)
        half.rename(copy)
    return str(copy)


def _others_can_reach(folder: Path) -> bool:
    return all(step.stat().st_mode & stat.S_IXOTH for step in (folder, *folder.resolve().parents))


if __name__ == "__main__":
    main(sys.argv[1])
