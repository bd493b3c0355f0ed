"""Disks without space: a limit on this process's files, and a small file system that a thread keeps full."""

import contextlib
import resource
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

PAGE = 4096


@contextlib.contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file can grow beyond this size: the system cuts the write that reaches it, and rejects the next ones."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class SmallDisk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """What others free or leave is taken at once."""
        filled, ended = threading.Event(), threading.Event()
        filling = threading.Thread(target=self._fill, args=(filled, ended))
        filling.start()
        try:
            assert filled.wait(60)
            yield
        finally:
            ended.set()
            filling.join()
            self._ballast.unlink()

    def _fill(self, filled: threading.Event, ended: threading.Event) -> None:
        with self._ballast.open("ab", buffering=0) as file:
            while not ended.is_set():
                for size in (256 * PAGE, PAGE):
                    with contextlib.suppress(OSError):
                        while not ended.is_set():
                            file.write(bytes(size))
                filled.set()
                ended.wait(0.002)


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[SmallDisk]:
    """Only root can mount one."""
    folder.mkdir()
    options = f"size={megabytes}m,mode=711"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
