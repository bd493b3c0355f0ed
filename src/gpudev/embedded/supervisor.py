"""The process in the background: starts the system's parts in order, keeps them running, ends them in reverse order.

Decides when a part is started, started again and ended. What the parts are is `system`'s business, and what is told to
people is `up`'s: it hears of every step through `tell`. One thread, one loop, woken by signals.
"""

import fcntl
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import structlog

from gpudev.adapters.local.machine.processes import identify_self
from gpudev.domain.errors import Conflict, GpuDevError, Unavailable
from gpudev.embedded import pidfiles
from gpudev.embedded.layout import Layout
from gpudev.embedded.stages import Service, Step, Task
from gpudev.embedded.supervised_processes import Child, end_stray, rotate_log

log = structlog.get_logger()

_LOOK_AT_LOGS_EVERY = 10.0
_LOOK_FOR_READINESS_EVERY = 0.02


class _Interrupted(Exception):
    """Told to end while still starting."""


class Supervisor:
    def __init__(self, layout: Layout, stages: Sequence[Service | Task], tell: Callable[[Step], None]) -> None:
        self._layout = layout
        self._stages = stages
        self._tell = tell
        self._children: list[Child] = []
        self._ending = False
        self._wake_up: int = -1
        self._held: os.stat_result | None = None
        self._logs_looked_at = time.monotonic()

    def run(self) -> int:
        """Returns when told to end (0), or when a part could not be started (1). Nothing it started stays."""
        self._layout.make_folders()
        with _sole_holder(self._layout.supervisor_lock) as self._held, self._signals():
            own_pid_file = self._layout.pid_file("supervisor")
            pidfiles.write(own_pid_file, identify_self())
            try:
                return self._live()
            finally:
                self._end_children()
                if self._is_in_its_folder():
                    self._layout.system_file.unlink(missing_ok=True)
                    own_pid_file.unlink(missing_ok=True)
                log.info("supervisor.ended")

    def _live(self) -> int:
        for stage in self._stages:
            started_at = time.monotonic()
            self._tell(Step(stage.name, "started"))
            try:
                self._bring_up(stage)
            except _Interrupted:
                return 0
            except (GpuDevError, OSError) as error:
                return self._give_up(stage.name, str(error), time.monotonic() - started_at)
            self._tell(Step(stage.name, "ok", time.monotonic() - started_at))
        for child in self._children:  # one that nobody waited for may have ended meanwhile
            if (code := child.returncode()) is not None:
                return self._give_up(child.spec.name, f"it {_how_it_ended(code)}")
        self._tell(Step("supervisor", "ok"))
        self._keep_running()
        return 0

    def _give_up(self, part: str, reason: str, seconds: float = 0.0) -> int:
        log.error("supervisor.start_failed", part=part, reason=reason)
        self._tell(Step(part, "failed", seconds, reason))
        return 1

    def _bring_up(self, stage: Service | Task) -> None:
        if (stray := end_stray(stage.spec)) is not None:
            log.warning("supervisor.stray_ended", part=stage.name, pid=stray.pid)
        match stage:
            case Service():
                child = Child(stage.spec)
                self._children.append(child)
                child.start()
                log.info("supervisor.started", part=stage.name, pid=child.pid)
                self._await_ready(stage, child)
            case Task():
                self._carry_out(stage)

    def _await_ready(self, service: Service, child: Child) -> None:
        deadline = time.monotonic() + service.ready_within
        while not service.is_ready():
            if (code := child.returncode()) is not None:
                raise Unavailable(f"it {_how_it_ended(code)}")
            if time.monotonic() > deadline:
                raise Unavailable(f"it did not answer within {service.ready_within:g} s")
            self._pause(_LOOK_FOR_READINESS_EVERY)

    def _carry_out(self, task: Task) -> None:
        child = Child(task.spec)
        self._children.append(child)
        child.start()
        while (code := child.returncode()) is None:
            self._pause(_LOOK_FOR_READINESS_EVERY)
        self._children.remove(child)
        child.end()
        if code != 0:
            raise Unavailable(f"it {_how_it_ended(code)}")

    def _keep_running(self) -> None:
        while not self._ending:
            if not self._is_in_its_folder():
                log.error("supervisor.folder_gone", folder=str(self._layout.home))
                return
            for child in self._children:
                self._look_after(child)
            self._look_at_logs()
            self._sleep(self._until_next_due())

    def _look_after(self, child: Child) -> None:
        if (code := child.returncode()) is not None:
            delay = child.mourn()
            log.warning("supervisor.part_ended", part=child.spec.name, how=_how_it_ended(code), again_in=delay)
        if child.due is not None and child.due <= time.monotonic():
            try:
                child.start()
                log.info("supervisor.restarted", part=child.spec.name, starts=child.starts)
            except (GpuDevError, OSError, subprocess.SubprocessError) as error:
                delay = child.mourn()
                log.error("supervisor.start_failed", part=child.spec.name, reason=str(error), again_in=delay)

    def _until_next_due(self) -> float:
        now = time.monotonic()
        return max(0.0, min([_LOOK_AT_LOGS_EVERY, *(child.due - now for child in self._children if child.due)]))

    def _look_at_logs(self) -> None:
        now = time.monotonic()
        if now - self._logs_looked_at < _LOOK_AT_LOGS_EVERY:
            return
        self._logs_looked_at = now
        for file in [self._layout.log_file("supervisor"), *(child.spec.log_file for child in self._children)]:
            rotate_log(file)

    def _is_in_its_folder(self) -> bool:
        """False: somebody has removed the folder. Nobody can find this system any more, or end it, and whatever is
        at that path by now is another's."""
        try:
            return self._held is not None and os.path.samestat(self._held, self._layout.supervisor_lock.stat())
        except FileNotFoundError:
            return False

    def _end_children(self) -> None:
        for child in reversed(self._children):
            if child.end():
                log.info("supervisor.stopped", part=child.spec.name)
            else:
                log.error("supervisor.does_not_end", part=child.spec.name)

    # Signals

    @contextmanager
    def _signals(self) -> Iterator[None]:
        self._wake_up, noisy = os.pipe()
        os.set_blocking(self._wake_up, False)
        os.set_blocking(noisy, False)
        signal.set_wakeup_fd(noisy, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note_end)
        # A handler and not SIG_IGN, which the children would inherit. A closed terminal is no reason to end.
        for number in (signal.SIGCHLD, signal.SIGHUP):
            signal.signal(number, _note_nothing)
        try:
            yield
        finally:
            signal.set_wakeup_fd(-1)
            os.close(self._wake_up)
            os.close(noisy)

    def _note_end(self, _number: int, _frame: FrameType | None) -> None:
        self._ending = True

    def _pause(self, seconds: float) -> None:
        self._sleep(seconds)
        if self._ending:
            raise _Interrupted

    def _sleep(self, seconds: float) -> None:
        """Until something happens, at most that long."""
        if not self._ending and select.select([self._wake_up], [], [], seconds)[0]:
            os.read(self._wake_up, 4096)


def _note_nothing(_number: int, _frame: FrameType | None) -> None:
    pass


def _how_it_ended(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


@contextmanager
def _sole_holder(path: Path) -> Iterator[os.stat_result]:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Conflict("Another supervisor already looks after this system.") from error
        yield os.fstat(file.fileno())
