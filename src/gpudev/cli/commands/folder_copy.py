"""The folder that `run` copies: counted before anything is reserved, confirmed if large, sent with a progress bar."""

import sys
import time
from pathlib import Path
from typing import NamedTuple

import click

from gpudev.cli import formatting, output
from gpudev.cli.command_session import CommandSession
from gpudev.cli.commands.disks.disk_formatting import data_size, file_count
from gpudev.sdk.remote import openssh, upload
from gpudev.wire.reservations import JobView

LARGE_BYTES = 10**9
_FRESH_SECONDS = 5.0
"""After a longer wait the files are listed again: some may be gone, and tar would fail."""
_DRAW_SECONDS = 0.1
_BAR = 24


class CountedFolder(NamedTuple):
    folder: Path
    names: list[bytes]
    size_bytes: int
    counted_at: float
    """On the monotonic clock."""

    def describe(self) -> str:
        """'3001 files, 800 MB'."""
        return f"{file_count(len(self.names))}, {data_size(self.size_bytes)}"


def count_folder(folder: Path) -> CountedFolder:
    names = upload.list_files(folder)
    return CountedFolder(folder, names, upload.total_size(folder, names), time.monotonic())


def confirm_large(counted: CountedFolder, *, may_ask: bool) -> bool:
    """False: the user was asked and declined."""
    if counted.size_bytes < LARGE_BYTES or not may_ask:
        return True
    return click.confirm(output.clean(f"Copy {counted.folder} ({counted.describe()}) to the dev server?"), default=True)


def copy_counted(session: CommandSession, job: JobView, route: openssh.ProxyCommand, counted: CountedFolder) -> str:
    """Copy it; returns the remote folder, relative to the home."""
    if time.monotonic() - counted.counted_at > _FRESH_SECONDS:
        counted = count_folder(counted.folder)
    target = upload.default_target(counted.folder)
    title = f"{formatting.short_id(job.reservation_id)}: {counted.describe()} to ~/{target}"
    transfer = upload.FolderTransfer(counted.folder, target)
    if not output.stderr_is_terminal():
        output.write_note(title)
        upload.copy_files(job, session.env, route, transfer, counted.names)
        return target
    bar = TransferBar(title, counted.size_bytes)
    try:
        upload.copy_files(job, session.env, route, transfer, counted.names, on_progress=bar.show)
    finally:
        bar.close()
    return target


class TransferBar:
    """One line on standard error, redrawn in place; a short transfer shows its title only."""

    def __init__(self, title: str, total: int) -> None:
        self._title = title
        self._total = total
        self._since = self._drawn_at = time.monotonic()

    def show(self, sent: int) -> None:
        now = time.monotonic()
        if now - self._drawn_at < _DRAW_SECONDS:
            return
        self._drawn_at = now
        self._draw(f"{self._title}  {progress_text(sent, self._total, now - self._since)}")

    def close(self) -> None:
        self._draw("")
        output.write_note(self._title)

    def _draw(self, text: str) -> None:
        line = output.cut(output.clean(text), max(20, output.terminal_columns(sys.stderr) - 1))
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()


def progress_text(sent: int, total: int, seconds: float) -> str:
    """'[#########               ]  38 %, 110 MB/s'."""
    share = min(1.0, sent / total) if total else 1.0
    filled = int(share * _BAR)
    rate = f", {data_size(int(sent / seconds))}/s" if seconds > 0 else ""
    return f"[{'#' * filled}{' ' * (_BAR - filled)}] {100 * share:3.0f} %{rate}"
