"""Processes of the embedded system: pid files, supervised children, and the order of their start.

A pid file names the pid, its start and its boot (`adapters.local.machine.processes`), so that a reused pid or a file
from before a reboot names nobody.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpudev.adapters.local.machine.processes import (
    ProcessIdentity,
    has_ended,
    identify_self,
    is_alive,
    open_pidfd,
    send_signal,
)
from gpudev.domain.backoff import backoff
from gpudev.domain.errors import Unavailable

SignalSteps = tuple[tuple[signal.Signals, float], ...]
"""Which signals to send, and how many seconds each is given."""


def write_pid_file(path: Path, process: ProcessIdentity) -> None:
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(f"{process.pid}\n{process.started}\n{process.boot}\n", encoding="ascii")
    fresh.replace(path)


def find_process(path: Path) -> ProcessIdentity | None:
    """The process a pid file names, if it still runs."""
    try:
        pid, started, boot = path.read_text(encoding="ascii").split()
        process = ProcessIdentity(int(pid), started, boot)
    except (FileNotFoundError, ValueError):
        return None
    return process if is_alive(process) else None


def end_process(process: ProcessIdentity, steps: SignalSteps) -> bool:
    """Sends each signal and gives it its time, until the process is gone. False: it outlived them all."""
    try:
        descriptor = open_pidfd(process)
    except ProcessLookupError:
        return True
    try:
        for number, seconds in steps:
            send_signal(process, number, descriptor)
            # A pidfd is readable for a zombie too: that it is not reaped yet is its parent's affair.
            if wait_until(lambda: has_ended(process, descriptor), seconds):
                return True
        return False
    finally:
        if descriptor is not None:
            os.close(descriptor)


def wait_until(claim: Callable[[], bool], seconds: float, *, every: float = 0.01) -> bool:
    deadline = time.monotonic() + seconds
    while not claim():
        if time.monotonic() >= deadline:
            return False
        time.sleep(every)
    return True


# One supervised child: start, restart, stop. The supervisor owns the loop; this owns one child's state.


FIRST_DELAY, MAX_DELAY = 0.1, 5.0
HEALTHY_AFTER = 10.0
_LOG_COUNT = 3
_LOG_BYTES = 10 * 1024 * 1024


def restart_delay(previous: float, ran_for: float) -> float:
    """How long to wait before the next start: soon for a child that had been well, ever longer for one that is not."""
    if previous == 0 or ran_for >= HEALTHY_AFTER:
        return FIRST_DELAY
    return backoff(2, previous, MAX_DELAY)


@dataclass(frozen=True, slots=True)
class ChildSpec:
    name: str
    command: Callable[[], list[str]]
    environment: Mapping[str, str]
    pid_file: Path
    log_file: Path
    before_start: Callable[[], None] = lambda: None
    stop_signals: SignalSteps = ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0))


class Child:
    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.restart_at: float | None = None
        """When to start it again (monotonic); None: it runs, or it is not meant to."""
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._delay = 0.0
        self._started_at = 0.0

    def start(self) -> None:
        self.restart_at = None
        self._started_at = time.monotonic()
        self.starts += 1
        self.spec.before_start()
        with self.spec.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self.spec.command(),
                env=dict(self.spec.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Its own session: a signal to the supervisor's group is not a signal to it.
                start_new_session=True,
                # The child itself leaves word of its pid before it becomes the program. Were it the supervisor's
                # task, one killed in between would leave a process nobody can find. We have no threads, so it is safe.
                preexec_fn=self._write_pid_file,  # noqa: PLW1509
                cwd="/",
            )

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def returncode(self) -> int | None:
        """None: it still runs, or never ran."""
        return None if self._process is None else self._process.poll()

    def schedule_restart(self) -> float:
        """It has ended or could not be started: decides when to start it again, and returns in how many seconds."""
        now = time.monotonic()
        self._delay = restart_delay(self._delay, now - self._started_at)
        self.restart_at = now + self._delay
        self._clear()
        return self._delay

    def end(self) -> bool:
        """False: it outlived every signal."""
        self.restart_at = None
        if self._process is None:
            return True
        for number, seconds in self.spec.stop_signals:
            self._process.send_signal(number)
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                continue
            self._clear()
            return True
        return False

    def _write_pid_file(self) -> None:
        write_pid_file(self.spec.pid_file, identify_self())

    def _clear(self) -> None:
        self._process = None
        self.spec.pid_file.unlink(missing_ok=True)


def end_stray(spec: ChildSpec) -> ProcessIdentity | None:
    """Ends what a supervisor that was killed left running, so that nothing runs twice. Returns what it found."""
    stray = find_process(spec.pid_file)
    if stray is not None and not end_process(stray, spec.stop_signals):
        raise Unavailable(f"an earlier one (process {stray.pid}) still runs and does not end")
    spec.pid_file.unlink(missing_ok=True)
    return stray


def rotate_log(log: Path, *, limit: int = _LOG_BYTES) -> bool:
    """Copies a log that has grown too long away and empties it in place: its writers hold it open, appending."""
    try:
        if log.stat().st_size <= limit:
            return False
    except FileNotFoundError:
        return False
    for number in range(_LOG_COUNT - 1, 0, -1):
        older = log.with_name(f"{log.name}.{number}")
        if older.exists():
            older.replace(log.with_name(f"{log.name}.{number + 1}"))
    fresh = log.with_name(f"{log.name}.1")
    fresh.write_bytes(log.read_bytes())
    fresh.chmod(0o600)
    os.truncate(log, 0)
    return True


# The supervisor's parts and progress, for callers that need neither its loop nor its log.


@dataclass(frozen=True, slots=True)
class SupervisedService:
    """A part that runs until it is told to end."""

    spec: ChildSpec
    is_ready: Callable[[], bool] = lambda: True
    ready_within: float = 30.0

    @property
    def name(self) -> str:
        return self.spec.name


@dataclass(frozen=True, slots=True)
class SupervisedTask:
    """A part that runs once, before those behind it may start."""

    spec: ChildSpec

    @property
    def name(self) -> str:
        return self.spec.name


@dataclass(frozen=True, slots=True)
class StartupStep:
    """How far the start is; `state` is started, ok or failed."""

    name: str
    state: str
    seconds: float = 0.0
    reason: str | None = None
