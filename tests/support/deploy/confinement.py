"""A container's life without a container's programs: a root that is read-only, nobody's user, no way to more rights.

In it lies what a recipe puts there, and what Python needs of this machine, which stands for the base image.

    run(*confined.command("gpu-dev-server", "api"), env=...)          # root on Linux
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

NOBODY = "65532"
_PROGRAMS = ("unshare", "mount", "chroot", "setpriv", "ldd")
_ENTER = """
set -eu
chroot=$1 root=$2 environment=$3 scripts=$4 python=$5
shift 5
mount --bind "$root" "$root"
mount --bind "$environment" "$root/opt/gpu-dev"
mount --bind "$scripts" "$root/opt/gpu-dev/bin"
mount --bind "$python" "$root$python"
for one in "$root$python" "$root/opt/gpu-dev/bin" "$root/opt/gpu-dev" "$root"; do
    mount -o remount,bind,ro "$one"
done
mount -t tmpfs -o mode=1777 none "$root/tmp"
mount -t proc none "$root/proc"
for one in null urandom; do
    mount --bind "/dev/$one" "$root/dev/$one"
done
exec setpriv --no-new-privs "$chroot" --userspec=65532:65532 --groups= "$root" "$@"
"""
_ENTER_ALONE = """
set -eu
chroot=$1 root=$2 volume=$3
shift 3
mount --bind "$root" "$root"
mount --bind "$volume" "$root/volume"
mount -o remount,bind,ro "$root"
mount -t proc none "$root/proc"
exec setpriv --no-new-privs "$chroot" --userspec=65532:65532 --groups= "$root" "$@"
"""
_UNSHARE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c")


def alone(root: Path, volume: Path, *command: str) -> list[str]:
    """A program that needs nothing of a base image, with one folder to write to: /volume."""
    for name in ("volume", "proc"):
        (root / name).mkdir()
    return [*_UNSHARE, _ENTER_ALONE, "enter", *map(str, (shutil.which("chroot"), root, volume)), *command]


def why_not() -> str | None:
    if sys.platform != "linux" or os.geteuid() != 0:
        return "only root on Linux can give a process another root"
    if missing := [name for name in _PROGRAMS if shutil.which(name) is None]:
        return f"there is no {missing[0]} here"
    if subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], check=False, capture_output=True).returncode:
        return "root may make no namespaces here (a container?)"
    return None


@dataclass(frozen=True)
class Confined:
    root: Path
    environment: Path
    """The virtual environment: /opt/gpu-dev in there."""
    scripts: Path

    @classmethod
    def prepare(cls, folder: Path, environment: Path) -> "Confined":
        made = cls(folder / "root", environment, folder / "scripts")
        python = Path(sys.base_prefix)
        for name in ("opt/gpu-dev", "tmp", "proc", "dev", "etc", str(python).lstrip("/")):
            (made.root / name).mkdir(parents=True)
        for name in ("null", "urandom"):
            (made.root / "dev" / name).touch()
        for library in _libraries(python, environment):
            copy = made.root / str(library).lstrip("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, copy)
        shutil.copytree(environment / "bin", made.scripts, symlinks=True)
        for script in made.scripts.iterdir():
            if not script.is_symlink():
                script.write_bytes(script.read_bytes().replace(bytes(environment), b"/opt/gpu-dev"))
        return made

    def command(self, program: str, *arguments: str) -> list[str]:
        places = (shutil.which("chroot"), self.root, self.environment, self.scripts, sys.base_prefix)
        inside = f"/opt/gpu-dev/bin/{program}"
        return [*_UNSHARE, _ENTER, "enter", *map(str, places), inside, *arguments]


def _libraries(python: Path, environment: Path) -> set[Path]:
    """What is loaded from this machine: of it, a base image has its own."""
    whole = [Path(sys.executable).resolve(), *python.glob("lib/python*/lib-dynload/*.so"), *environment.rglob("*.so")]
    told = subprocess.run(["ldd", *map(str, whole)], capture_output=True, text=True, check=False).stdout
    found = {Path(path) for path in re.findall(r"(?:=> |^\s+)(/\S+) \(0x", told, re.MULTILINE)}
    return {path for path in found if not path.is_relative_to(python) and not path.is_relative_to(environment)}
