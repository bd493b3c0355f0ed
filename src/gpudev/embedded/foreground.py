"""Staying with a running system: what a service manager runs, so that it has one process to watch and to stop."""

import signal
import time
from types import FrameType

from gpudev.adapters.local.machine.processes import ProcessIdentity, is_alive
from gpudev.embedded.layout import Layout
from gpudev.embedded.running import stop_control_plane

_POLL_SECONDS = 0.2


class _StopRequested(Exception):
    pass


def follow_supervisor(layout: Layout, supervisor: ProcessIdentity) -> int:
    """Until the system ends (0 when it was stopped, 1 when it died) or a signal asks us to stop it (0).

    Dev servers are left alone: they survive a restart of the control plane.
    """
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _request_stop)
        while is_alive(supervisor):
            time.sleep(_POLL_SECONDS)
    except _StopRequested:
        stop_control_plane(layout)
        return 0
    # A supervisor that ended in order has taken its pid file with it.
    return 1 if layout.pid_file("supervisor").exists() else 0


def _request_stop(_number: int, _frame: FrameType | None) -> None:
    raise _StopRequested
