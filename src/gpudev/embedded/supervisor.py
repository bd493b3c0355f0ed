"""The supervisor: starts the system's processes in order, restarts them, stops them in reverse order.

`system` defines the processes; `up` gets every step through `report` and prints it. One thread, one loop, woken by
signals.
"""

import fcntl
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import structlog

from gpudev.adapters.local.machine import linux
from gpudev.adapters.local.machine.processes import identify_self
from gpudev.domain.errors import Conflict, GpuDevError, Unavailable
from gpudev.embedded import supervised_processes
from gpudev.embedded.layout import Layout
from gpudev.embedded.supervised_processes import (
    Child,
    StartupStep,
    SupervisedService,
    SupervisedTask,
    end_orphan,
    rotate_log,
)

log = structlog.get_logger()

_FILE_CHECK_SECONDS = 10.0
_RETRY_SECONDS = 1.0
_READINESS_POLL_SECONDS = 0.02


class _Interrupted(Exception):
    """Stop requested during the start."""


class Supervisor:
    def __init__(
        self, layout: Layout, parts: Sequence[SupervisedService | SupervisedTask], report: Callable[[StartupStep], None]
    ) -> None:
        self._layout = layout
        self._parts = parts
        self._report = report
        self._children: list[Child] = []
        self._is_stopping = False
        self._wake_up: int = -1
        self._lock_stat: os.stat_result | None = None
        self._files_checked_at = time.monotonic()

    def run(self) -> int:
        """Returns when stopped (0), or when a process could not be started (1). All its processes have then ended."""
        self._layout.make_folders()
        with _hold_lock(self._layout.supervisor_lock) as self._lock_stat, self._signals():
            own_pid_file = self._layout.pid_file("supervisor")
            supervised_processes.write_pid_file(own_pid_file, identify_self())
            if linux.IS_LINUX:
                linux.set_oom_score_adj(linux.OOM_SCORE_OF_SYSTEM)  # for all parts; dev servers choose their own
            try:
                return self._run_parts()
            finally:
                self._end_children()
                if self._owns_folder():
                    self._layout.system_file.unlink(missing_ok=True)
                    own_pid_file.unlink(missing_ok=True)
                log.info("supervisor.ended")

    def _run_parts(self) -> int:
        for part in self._parts:
            started_at = time.monotonic()
            self._report(StartupStep(part.name, "started"))
            try:
                self._start_part(part)
            except _Interrupted:
                return 0
            except (GpuDevError, OSError) as error:
                return self._fail_start(part.name, str(error), time.monotonic() - started_at)
            self._report(StartupStep(part.name, "ok", time.monotonic() - started_at))
        for child in self._children:  # one without a readiness check may have ended since
            if (code := child.returncode()) is not None:
                return self._fail_start(child.spec.name, f"it {_describe_exit(code)}")
        self._report(StartupStep("supervisor", "ok"))
        self._keep_running()
        return 0

    def _fail_start(self, part: str, reason: str, seconds: float = 0.0) -> int:
        log.error("supervisor.start_failed", part=part, reason=reason)
        self._report(StartupStep(part, "failed", seconds, reason))
        return 1

    def _start_part(self, part: SupervisedService | SupervisedTask) -> None:
        if (orphan := end_orphan(part.spec)) is not None:
            log.warning("supervisor.orphan_ended", part=part.name, pid=orphan.pid)
        match part:
            case SupervisedService():
                child = Child(part.spec)
                self._children.append(child)
                child.start()
                log.info("supervisor.started", part=part.name, pid=child.pid)
                self._await_ready(part, child)
            case SupervisedTask():
                self._run_task(part)

    def _await_ready(self, service: SupervisedService, child: Child) -> None:
        deadline = time.monotonic() + service.ready_within
        while not service.is_ready():
            if (code := child.returncode()) is not None:
                raise Unavailable(f"it {_describe_exit(code)}")
            if time.monotonic() > deadline:
                raise Unavailable(f"it was not ready within {service.ready_within:g} s")
            self._pause(_READINESS_POLL_SECONDS)

    def _run_task(self, task: SupervisedTask) -> None:
        child = Child(task.spec)
        self._children.append(child)
        child.start()
        while (code := child.returncode()) is None:
            self._pause(_READINESS_POLL_SECONDS)
        self._children.remove(child)
        child.end()
        if code != 0:
            raise Unavailable(f"it {_describe_exit(code)}")

    def _keep_running(self) -> None:
        while not self._is_stopping:
            try:
                if not self._owns_folder():
                    log.error("supervisor.folder_gone", folder=str(self._layout.home))
                    return
                for child in self._children:
                    self._restart_if_due(child)
                self._check_files()
            except Exception:
                # Its end would end everything else, and nobody would start it again.
                log.exception("supervisor.unexpected_error")
                self._sleep(_RETRY_SECONDS)
            self._sleep(self._until_next_due())

    def _restart_if_due(self, child: Child) -> None:
        if (code := child.returncode()) is not None:
            delay = child.schedule_restart()
            log.warning("supervisor.part_ended", part=child.spec.name, reason=_describe_exit(code), restart_in=delay)
        if child.restart_at is not None and child.restart_at <= time.monotonic():
            try:
                child.start()
                log.info("supervisor.restarted", part=child.spec.name, starts=child.starts)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
                delay = child.schedule_restart()
                log.error("supervisor.start_failed", part=child.spec.name, reason=str(error), restart_in=delay)

    def _until_next_due(self) -> float:
        now = time.monotonic()
        return max(
            0.0, min([_FILE_CHECK_SECONDS, *(child.restart_at - now for child in self._children if child.restart_at)])
        )

    def _check_files(self) -> None:
        """Logs that have become too long, and pid files that could not be written."""
        now = time.monotonic()
        if now - self._files_checked_at < _FILE_CHECK_SECONDS:
            return
        self._files_checked_at = now
        self._ensure_own_pid_file()
        for child in self._children:
            child.ensure_pid_file()
        for file in [self._layout.log_file("supervisor"), *(child.spec.log_file for child in self._children)]:
            try:
                rotate_log(file)
            except OSError as error:
                log.warning("supervisor.log_not_rotated", file=file.name, reason=str(error))

    def _ensure_own_pid_file(self) -> None:
        if not self._layout.pid_file("supervisor").exists():
            supervised_processes.write_pid_file(self._layout.pid_file("supervisor"), identify_self())

    def _owns_folder(self) -> bool:
        """False: the folder was removed or replaced, so no command can find this system any more."""
        try:
            return self._lock_stat is not None and os.path.samestat(
                self._lock_stat, self._layout.supervisor_lock.stat()
            )
        except FileNotFoundError:
            return False

    def _end_children(self) -> None:
        for child in reversed(self._children):
            if child.end():
                log.info("supervisor.stopped", part=child.spec.name)
            else:
                log.error("supervisor.stop_failed", part=child.spec.name)

    # Signals

    @contextmanager
    def _signals(self) -> Iterator[None]:
        self._wake_up, write_end = os.pipe()
        os.set_blocking(self._wake_up, False)
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._request_stop)
        # A handler, not SIG_IGN, which the children would inherit. A closed terminal must not end the system.
        for number in (signal.SIGCHLD, signal.SIGHUP):
            signal.signal(number, _ignore_signal)
        try:
            yield
        finally:
            signal.set_wakeup_fd(-1)
            os.close(self._wake_up)
            os.close(write_end)

    def _request_stop(self, _number: int, _frame: FrameType | None) -> None:
        self._is_stopping = True

    def _pause(self, seconds: float) -> None:
        self._sleep(seconds)
        if self._is_stopping:
            raise _Interrupted

    def _sleep(self, seconds: float) -> None:
        """Until a signal, at most that long."""
        if not self._is_stopping and select.select([self._wake_up], [], [], seconds)[0]:
            os.read(self._wake_up, 4096)


def _ignore_signal(_number: int, _frame: FrameType | None) -> None:
    pass


def _describe_exit(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


@contextmanager
def _hold_lock(path: Path) -> Iterator[os.stat_result]:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Conflict("another supervisor already runs for this system") from error
        yield os.fstat(file.fileno())
