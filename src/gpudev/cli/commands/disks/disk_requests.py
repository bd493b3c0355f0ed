"""Disk requests of the commands: errors with next steps, and progress of operations."""

import gc
import sys
import time
from typing import TypeVar

from gpudev.cli import formatting, output
from gpudev.cli.command_session import CommandApi, CommandSession
from gpudev.cli.exit_codes import CliError, ExitCode
from gpudev.sdk.errors import NotFound, Unreachable
from gpudev.sdk.http.disk_endpoints import wait_for_operation
from gpudev.sdk.http.endpoints import ApiCall, ApiReply
from gpudev.sdk.http.event_stream import read_patience
from gpudev.wire.disks import OperationView

_T = TypeVar("_T")


def fetch_disk_call(api: CommandApi, call: ApiCall[_T]) -> ApiReply[_T]:
    try:
        return api.fetch(call)
    except NotFound as error:
        if "`gpu-dev" in error.message:
            raise
        step = "`gpu-dev disk list` shows your disks, `gpu-dev disk snapshots NAME` their snapshots"
        raise error.with_next_step(step) from error
    except Unreachable as error:
        if not error.sent or call.method == "GET":
            raise
        step = "The request may have been accepted; `gpu-dev disk list` shows your disks"
        raise error.with_next_step(step) from error


# Progress of an operation: one line redrawn on a terminal, one line per step in logs, nothing for `--json`.


_DRAW_AFTER_SECONDS = 0.3
"""A shorter operation shows no progress."""


def wait_with_progress(
    session: CommandSession, first: ApiReply[OperationView], title: str, *, quiet: bool
) -> ApiReply[OperationView]:
    """`title` precedes each step, e.g. "Cloning data". Ctrl-C stops the wait, not the operation."""
    progress = _Progress(title, quiet=quiet)
    try:
        waiting = wait_for_operation(
            session.api.client,
            first,
            patience=read_patience(session.env),
            on_change=progress.show,
            on_lost=progress.show_trouble,
        )
        gc.enable()
        return session.api.run(waiting)
    except KeyboardInterrupt:
        name = first.value.disk_name
        step = f"`gpu-dev disk show {name}` shows its progress"
        raise CliError(ExitCode.INTERRUPTED, "stopped waiting; the operation continues", step) from None
    finally:
        progress.close()


class _Progress:
    def __init__(self, title: str, *, quiet: bool) -> None:
        self._title = title
        self._quiet = quiet
        self._in_place = output.stdout_is_terminal()
        self._since = time.monotonic()
        self._last_text = ""
        self._drawn = False

    def show(self, operation: OperationView) -> None:
        trouble = f" (retrying: {operation.error})" if operation.error else ""
        self._show_text(f"{operation.step}{trouble}")

    def show_trouble(self, why: str) -> None:
        self._show_text(f"retrying: {why}")

    def close(self) -> None:
        if self._drawn:
            sys.stdout.write("\r\x1b[K")
            sys.stdout.flush()

    def _show_text(self, text: str) -> None:
        waited = time.monotonic() - self._since
        if self._quiet or waited < _DRAW_AFTER_SECONDS:
            return
        if self._in_place:
            line = output.clean(f"{self._title}: {text} ({formatting.format_clock(waited)})")
            sys.stdout.write("\r\x1b[K" + output.paint(output.cut(line, max(20, output.terminal_columns() - 1)), "dim"))
            sys.stdout.flush()
            self._drawn = True
        elif text != self._last_text:
            output.write_line(output.clean(f"{self._title}: {text}"))
            sys.stdout.flush()
        self._last_text = text
