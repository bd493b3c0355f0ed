"""What becomes of an attempt to make a dev server's interior true: when it is looked at again, and what its owner is
told. Pure."""

from datetime import datetime, timedelta

from gpudev.domain.sessions.addons import Addons, JupyterState, JupyterStatus
from gpudev.ports.sessions import AddonResult

_WHILE_STARTING = timedelta(seconds=0.5)
_WHILE_READY = timedelta(seconds=20)
"""It may have died without anybody's asking."""
_FIRST_PAUSE = timedelta(seconds=1)
_LONGEST_PAUSE = timedelta(minutes=1)


def applied_result(addons: Addons, status: JupyterStatus | None, now: datetime) -> AddonResult:
    wanted = addons.jupyter is not None
    return AddonResult(
        addons.reservation_id, addons.generation, None, status if wanted else None, _next_check(status, now)
    )


def failed_result(addons: Addons, error: str, now: datetime) -> AddonResult:
    """It is tried again, less and less often: the dev server may be away for long."""
    pause = min(_FIRST_PAUSE * 2 ** min(addons.attempts, 10), _LONGEST_PAUSE)
    return AddonResult(addons.reservation_id, addons.generation, error, None, now + pause)


def describe_jupyter_change(addons: Addons, status: JupyterStatus | None) -> str | None:
    """A line for the reservation's history, if something happened that its owner waits for."""
    if addons.jupyter is None or status is None or addons.jupyter.status == status:
        return None
    match status.state:
        case JupyterState.READY:
            return "Jupyter is ready"
        case JupyterState.FAILED:
            return f"Jupyter does not run: {status.reason}"
        case JupyterState.STARTING:
            return "Jupyter is starting again" if addons.jupyter.status.state is JupyterState.READY else None


def _next_check(status: JupyterStatus | None, now: datetime) -> datetime | None:
    if status is None or status.state is JupyterState.FAILED:
        return None
    return now + (_WHILE_STARTING if status.state is JupyterState.STARTING else _WHILE_READY)
