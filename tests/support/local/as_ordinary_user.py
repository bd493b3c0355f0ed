"""`python as_ordinary_user.py COMMAND…`, by root: run a command as the user nobody, who can read this interpreter, its
packages and this repository even where they lie in a folder that is closed to others.

For that the command gets a mount namespace in which only those are shown of such a folder.
"""

import os
import sys
from pathlib import Path

from gpudev.adapters.local.machine import linux

NOBODY = 65534
NEEDED = [Path(sys.base_prefix), Path(sys.prefix), Path(__file__).parents[3]]


def main(command: list[str]) -> None:
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
    closed = {folder for path in NEEDED if (folder := closed_folder_on_the_way_to(path)) is not None}
    for folder in closed:
        show_only([path for path in NEEDED if path.is_relative_to(folder)], folder)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    os.execvp(command[0], command)


def closed_folder_on_the_way_to(path: Path) -> Path | None:
    way = [*reversed(path.parents), path]
    return next((folder for folder in way if not folder.stat().st_mode & 0o001), None)


def show_only(paths: list[Path], folder: Path) -> None:
    held = [(path, os.open(path, os.O_PATH)) for path in paths]
    linux.mount("tmpfs", str(folder), "tmpfs", 0, "mode=755")
    for path, fd in held:
        path.mkdir(parents=True, exist_ok=True)
        linux.bind_mount(f"/proc/self/fd/{fd}", str(path))
        os.close(fd)


if __name__ == "__main__":
    main(sys.argv[1:])
