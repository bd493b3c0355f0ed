"""What becomes of an attempt to make a dev server's interior true: when it is looked at again, and what its owner is
told. Pure."""

from datetime import datetime, timedelta

from gpudev.domain.sessions.addons import Interior, JupyterSeen, JupyterState
from gpudev.ports.sessions import Noted

_WHILE_STARTING = timedelta(seconds=0.5)
_WHILE_READY = timedelta(seconds=20)
"""It may have died without anybody's asking."""
_FIRST_PAUSE = timedelta(seconds=1)
_LONGEST_PAUSE = timedelta(minutes=1)


def made_true(interior: Interior, seen: JupyterSeen | None, now: datetime) -> Noted:
    wanted = interior.jupyter is not None
    return Noted(interior.reservation_id, interior.wanted, None, seen if wanted else None, _next_look(seen, now))


def not_yet(interior: Interior, why: str, now: datetime) -> Noted:
    """It is tried again, less and less often: the dev server may be away for long."""
    pause = min(_FIRST_PAUSE * 2 ** min(interior.attempts, 10), _LONGEST_PAUSE)
    return Noted(interior.reservation_id, interior.wanted, why, None, now + pause)


def news(interior: Interior, seen: JupyterSeen | None) -> str | None:
    """A line for the reservation's history, if something happened that its owner waits for."""
    if interior.jupyter is None or seen is None or interior.jupyter.seen == seen:
        return None
    match seen.state:
        case JupyterState.READY:
            return "Jupyter is ready"
        case JupyterState.FAILED:
            return f"Jupyter does not run: {seen.reason}"
        case JupyterState.STARTING:
            return "Jupyter is starting again" if interior.jupyter.seen.state is JupyterState.READY else None


def _next_look(seen: JupyterSeen | None, now: datetime) -> datetime | None:
    if seen is None or seen.state is JupyterState.FAILED:
        return None
    return now + (_WHILE_STARTING if seen.state is JupyterState.STARTING else _WHILE_READY)
