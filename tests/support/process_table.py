"""Who runs on this machine and with what words, read straight from the kernel where that is possible: tests ask after
every dev server, and asking psutil for each of some hundred processes costs more than the dev server did."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil

_PROC = Path("/proc")


def command_lines() -> Iterator[tuple[int, str]]:
    """Of every live process: what has ended and was not asked after yet (a zombie) has none."""
    return _words_of("cmdline")


def environments() -> Iterator[tuple[int, str]]:
    """NAME=VALUE of every live process that we may look at, separated and ended by zero bytes."""
    return _words_of("environ")


def _words_of(what: str) -> Iterator[tuple[int, str]]:
    if not (_PROC / "self" / what).exists():
        yield from _asked_of_psutil(what)
        return
    for pid in psutil.pids():
        try:
            with open(f"/proc/{pid}/{what}", "rb", buffering=0) as file:
                words = file.readall()
        except OSError:
            continue
        if words:
            yield pid, words.decode("utf-8", "surrogateescape")


def _asked_of_psutil(what: str) -> Iterator[tuple[int, str]]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE:
                words = process.cmdline() if what == "cmdline" else [f"{k}={v}" for k, v in process.environ().items()]
                yield process.pid, "".join(f"{word}\0" for word in words)
