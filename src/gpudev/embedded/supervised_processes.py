"""Processes of the embedded system: pid files, supervised children, and the supervisor's steps.

A pid file has the pid, the process's start time and the boot id (`adapters.local.machine.processes`), so that a reused
pid or a file from before a reboot does not match.
"""

import contextlib
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
    identify,
    identify_self,
    is_alive,
    open_pidfd,
    send_signal,
)
from gpudev.domain.backoff import backoff
from gpudev.domain.errors import Unavailable
from gpudev.log_output import open_log_file

SignalSteps = tuple[tuple[signal.Signals, float], ...]
"""Signals to send in order, each with the seconds to wait for it."""


def write_pid_file(path: Path, process: ProcessIdentity) -> None:
    """Best effort: with a full disk the process runs without its file, which is written later
    (`Child.ensure_pid_file`)."""
    fresh = path.with_name(path.name + ".new")
    try:
        fresh.write_text(f"{process.pid}\n{process.started}\n{process.boot}\n", encoding="ascii")
        fresh.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)


def find_process(path: Path) -> ProcessIdentity | None:
    """The process of a pid file, if it still runs."""
    try:
        pid, started, boot = path.read_text(encoding="ascii").split()
        process = ProcessIdentity(int(pid), started, boot)
    except (FileNotFoundError, ValueError):
        return None
    return process if is_alive(process) else None


def end_process(process: ProcessIdentity, steps: SignalSteps) -> bool:
    """Sends the signals until the process has ended. False: it survived all of them."""
    try:
        descriptor = open_pidfd(process)
    except ProcessLookupError:
        return True
    try:
        for number, seconds in steps:
            send_signal(process, number, descriptor)
            # A pidfd is readable for a zombie too, which its parent has to reap.
            if wait_until(lambda: has_ended(process, descriptor), seconds):
                return True
        return False
    finally:
        if descriptor is not None:
            os.close(descriptor)


def wait_until(condition: Callable[[], bool], seconds: float, *, every: float = 0.01) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(every)
    return True


# One supervised child: its state, start, restart and stop. The supervisor owns the loop.


FIRST_DELAY, MAX_DELAY = 0.1, 5.0
HEALTHY_AFTER = 10.0
_LOG_COUNT = 3
_LOG_BYTES = 10 * 1024 * 1024


def restart_delay(previous: float, ran_for: float) -> float:
    """The delay before a restart: short after a healthy run, otherwise with backoff."""
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
        """When to start it again (monotonic); None: it runs, or is not to run."""
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._delay = 0.0
        self._started_at = 0.0

    def start(self) -> None:
        self.restart_at = None
        self._started_at = time.monotonic()
        self.starts += 1
        self.spec.before_start()
        with open_log_file(self.spec.log_file) as log:
            self._process = subprocess.Popen(
                self.spec.command(),
                env=dict(self.spec.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Its own session, so that signals to the supervisor's group do not reach it.
                start_new_session=True,
                # The child writes its pid file before exec. If the supervisor did, a kill in between would leave a
                # process that cannot be found. Safe, because the supervisor has no threads.
                preexec_fn=self._write_pid_file,  # noqa: PLW1509
                cwd="/",
            )

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def returncode(self) -> int | None:
        """None: it runs, or was never started."""
        return None if self._process is None else self._process.poll()

    def schedule_restart(self) -> float:
        """For a child that ended or could not be started. Returns the delay in seconds."""
        now = time.monotonic()
        self._delay = restart_delay(self._delay, now - self._started_at)
        self.restart_at = now + self._delay
        self._clear()
        return self._delay

    def end(self) -> bool:
        """False: it survived every signal."""
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

    def ensure_pid_file(self) -> None:
        """Writes the pid file of a process that was started when that was not possible."""
        if self._process is None or self.spec.pid_file.exists() or self._process.poll() is not None:
            return
        if (process := identify(self._process.pid)) is not None:
            write_pid_file(self.spec.pid_file, process)

    def _write_pid_file(self) -> None:
        write_pid_file(self.spec.pid_file, identify_self())

    def _clear(self) -> None:
        self._process = None
        self.spec.pid_file.unlink(missing_ok=True)


def end_orphan(spec: ChildSpec) -> ProcessIdentity | None:
    """Ends the process that a killed supervisor left running, so that nothing runs twice. Returns that process."""
    orphan = find_process(spec.pid_file)
    if orphan is not None and not end_process(orphan, spec.stop_signals):
        raise Unavailable(f"an earlier process ({orphan.pid}) still runs and does not terminate")
    spec.pid_file.unlink(missing_ok=True)
    return orphan


def rotate_log(log: Path, *, limit: int = _LOG_BYTES) -> bool:
    """Copies a log above the limit and truncates it in place, because its writers keep it open for appending.

    Raises OSError, for example if the disk is full. Nothing has changed then.
    """
    try:
        if log.stat().st_size <= limit:
            return False
    except FileNotFoundError:
        return False
    copy = log.with_name(f"{log.name}.new")
    try:
        copy.write_bytes(log.read_bytes())
        copy.chmod(0o600)
    except OSError:
        copy.unlink(missing_ok=True)
        raise
    for number in range(_LOG_COUNT - 1, 0, -1):
        older = log.with_name(f"{log.name}.{number}")
        if older.exists():
            older.replace(log.with_name(f"{log.name}.{number + 1}"))
    copy.replace(log.with_name(f"{log.name}.1"))
    os.truncate(log, 0)
    return True


# The supervisor's processes and steps.


@dataclass(frozen=True, slots=True)
class SupervisedService:
    """A process that runs until it is stopped."""

    spec: ChildSpec
    is_ready: Callable[[], bool] = lambda: True
    ready_within: float = 600.0
    """Seconds. Long, because `up` has its own --timeout: this one ends a start that nobody waits for."""

    @property
    def name(self) -> str:
        return self.spec.name


@dataclass(frozen=True, slots=True)
class SupervisedTask:
    """A process that runs once; the next ones start after it."""

    spec: ChildSpec

    @property
    def name(self) -> str:
        return self.spec.name


@dataclass(frozen=True, slots=True)
class StartupStep:
    """Progress of the start; `state` is started, ok or failed."""

    name: str
    state: str
    seconds: float = 0.0
    reason: str | None = None
