"""Reports of a member's first process to the control plane, as files and through a pipe.

The control plane may be down at that moment, so facts are written to files of the member's folder first. The pipe then
carries them to a running control plane, so that it need not poll. The folder is kept open: its path is not visible
any more once the process has its own root.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from gpudev.adapters.atomic_write import write_atomically
from gpudev.adapters.local.machine.processes import ProcessIdentity

PROCESS_FILE = "process.json"
READY_FILE = "ready"
FAILURE_FILE = "failure"
LOG_FILE = "log"
LOCK_FILE = "lock"
LAUNCH_FILE = "launch.json"
PERSONALIZATION_FILE = "setup.json"
JUPYTER_FILE = "jupyter.json"
COMMAND_EXIT_FILE = "run-end.json"


@dataclass(frozen=True, slots=True)
class Pid1Report:
    """One line of the pipe."""

    step: str | None = None
    ready: bool = False
    failure: str | None = None

    @classmethod
    def parse(cls, line: bytes) -> "Pid1Report":
        return cls(**json.loads(line))


class Pid1Reporter:
    def __init__(self, member: Path, pipe: int) -> None:
        self._folder = os.open(member, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._pipe: int | None = pipe

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (self._folder,) if self._pipe is None else (self._folder, self._pipe)

    def report_process(self, process: ProcessIdentity) -> None:
        write_atomically(PROCESS_FILE, json.dumps(asdict(process)), folder=self._folder)

    def report_step(self, step: str) -> None:
        self._send(Pid1Report(step=step))

    def report_ready(self) -> None:
        write_atomically(READY_FILE, "", folder=self._folder)
        self._send(Pid1Report(ready=True))

    def report_failure(self, reason: str) -> None:
        write_atomically(FAILURE_FILE, reason, folder=self._folder)
        self._send(Pid1Report(failure=reason))

    def _send(self, report: Pid1Report) -> None:
        if self._pipe is None:
            return
        try:
            os.write(self._pipe, json.dumps(asdict(report)).encode() + b"\n")
        except (BrokenPipeError, BlockingIOError):
            # The control plane is gone; the next one reads the files.
            os.close(self._pipe)
            self._pipe = None


def open_jupyter_report(member: Path) -> int:
    """Opened early, because its path is not visible later. Untrusted: the writer runs with the user's rights."""
    return os.open(member / JUPYTER_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def open_personalization_report(member: Path) -> int:
    """Untrusted: the user's own processes write it."""
    return os.open(
        member / PERSONALIZATION_FILE, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )


def open_command_exit_report(member: Path) -> int:
    """The SSH server writes, with the user's rights, that the reservation's command has ended."""
    return os.open(
        member / COMMAND_EXIT_FILE, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
