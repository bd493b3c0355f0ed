"""Output of `up` and `down`: steps for people, one JSON object for programs."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpudev.domain.errors import GpuDevError

_TITLE_WIDTH = 22


class StepFailed(Exception):
    """A failed step, with the reason and what to do about it."""

    def __init__(self, step: str, reason: str, *, advice: str, log: Path | None = None) -> None:
        super().__init__(reason)
        self.step = step
        self.reason = reason
        self.advice = advice
        self.log = log


class ProgressOutput:
    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._out = sys.stdout
        self._live = self._out.isatty()

    def write_line(self, text: str = "") -> None:
        if not self._as_json:
            self._write(text + "\n")

    def write_result(self, value: dict[str, Any]) -> None:
        if self._as_json:
            self._write(json.dumps(value) + "\n")

    def step_started(self, title: str) -> None:
        if self._live and not self._as_json:
            self._write(f"  {title:<{_TITLE_WIDTH}} …")

    def step_done(self, title: str, seconds: float, note: str = "") -> None:
        self._line(title, f"ok      {seconds:5.1f} s{'  ' + note if note else ''}")

    def step_failed(self, title: str, seconds: float) -> None:
        self._line(title, f"FAILED  {seconds:5.1f} s")

    @contextmanager
    def step(self, title: str, *, advice: str) -> Iterator[list[str]]:
        """One step. Notes appended to the yielded list are printed beside it. Known errors become StepFailed."""
        started_at = time.monotonic()
        notes: list[str] = []
        self.step_started(title)
        try:
            yield notes
        except (GpuDevError, OSError, StepFailed) as error:
            self.step_failed(title, time.monotonic() - started_at)
            if isinstance(error, StepFailed):
                raise
            raise StepFailed(title, str(error), advice=advice) from error
        self.step_done(title, time.monotonic() - started_at, ", ".join(notes))

    def write_failure(self, error: StepFailed) -> None:
        """The failure, with the last lines of the log."""
        last_lines = read_tail(error.log) if error.log is not None else []
        if self._as_json:
            problem = {"ok": False, "step": error.step, "reason": error.reason, "advice": error.advice}
            self._write(json.dumps({**problem, "log": last_lines}) + "\n")
            return
        lines = [f"\n{error.step} failed: {error.reason.rstrip('.')}.", *(f"    {line}" for line in last_lines)]
        if last_lines:
            lines.append(f"(end of {error.log})")
        self._write("\n".join([*lines, f"What to do: {error.advice}", ""]))

    def _line(self, title: str, text: str) -> None:
        if not self._as_json:
            start = "\r\x1b[K" if self._live else ""
            self._write(f"{start}  {title:<{_TITLE_WIDTH}} {text}\n")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def read_tail(log: Path, lines: int = 10) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 16_384))
            return file.read().decode("utf-8", errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return []
