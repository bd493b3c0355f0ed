"""`python swapping.py FOLDER OUTSIDE`: until killed, swap things of a folder for links to a place outside of it and
back, move folders around, put pipes where files were, and make again what was removed."""

import contextlib
import itertools
import os
import sys
from pathlib import Path


def main(folder: Path, outside: Path) -> None:
    os.chdir(folder)
    print("swapping", flush=True)
    for number in itertools.count():
        for name in ("a", "b", "c"):
            with contextlib.suppress(OSError):
                swap(Path(name), outside, number)


def swap(path: Path, outside: Path, number: int) -> None:
    aside = path.with_name(f"{path.name}.aside")
    for left in (path, path / "inner"):
        if left.is_symlink():
            left.unlink()
    (path / "inner" / "deep").mkdir(parents=True, exist_ok=True)
    path.rename(aside)
    path.symlink_to(outside)
    path.unlink()
    aside.rename(path)
    inner = path / "inner"
    moved = Path(f"moved.{path.name}")
    inner.rename(moved)
    inner.symlink_to(outside / "folder")
    inner.unlink()
    moved.rename(inner)
    file = inner / "file"
    file.unlink(missing_ok=True)
    if number % 2:
        file.symlink_to(outside / "secret")
    else:
        os.mkfifo(file)
    file.unlink()
    file.write_text("harmless")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
