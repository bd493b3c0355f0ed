"""The route to a dev server: direct where that works, else through the proxy. Probed, not guessed."""

import os
import socket
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

from gpudev.sdk.api_address import is_loopback
from gpudev.sdk.banner_probe import PROBE_SECONDS, open_if_ssh
from gpudev.sdk.client_session import ClientSession
from gpudev.sdk.errors import UsageError
from gpudev.sdk.remote.openssh import check_connection
from gpudev.wire.reservations import JobView

_RECENTLY = timedelta(seconds=15)
_PATIENCE_SECONDS = 5.0


def choose_route(
    session: ClientSession, job: JobView, now: datetime, *, direct: bool, proxy: bool
) -> tuple[str, ...] | None:
    """The proxy command; None: straight. `direct` and `proxy`: what the person insists on."""
    if direct and proxy:
        raise UsageError("give --direct or --proxy, not both")
    check_connection(job)  # before anything is tried with it
    if proxy:
        return proxy_command(session, job)
    if is_loopback(job.node_ip or ""):
        # Of another machine, this address means something else here.
        return None if direct or session.address.is_local else proxy_command(session, job)
    answers = wait_until_ssh_answers(job) if is_recently_launched(job, now) else not direct and is_reachable(job)
    return None if direct or answers else proxy_command(session, job)


def proxy_command(session: ClientSession, job: JobView, *, auto: bool = False) -> tuple[str, ...]:
    """What ssh starts instead of connecting. It names the API, so that it works whoever starts it."""
    how = ("--auto",) if auto else ()
    return (*own_program(), "proxy-command", *how, "--api-url", session.address.url, job.reservation_id)


def own_program() -> tuple[str, ...]:
    """This very program, as somebody else would start it."""
    script = Path(sys.argv[0])
    if script.name == "gpu-dev" and script.is_absolute() and os.access(script, os.X_OK):
        return (str(script),)
    return (sys.executable, "-m", "gpudev.cli")


def is_recently_launched(job: JobView, now: datetime) -> bool:
    """Whether it became ready so lately, on another machine, that the network there may still be learning the way."""
    since = now - job.launched_at if job.launched_at is not None else None
    return since is not None and since < _RECENTLY and not is_loopback(job.node_ip or "")


def wait_until_ssh_answers(job: JobView, patience: float = _PATIENCE_SECONDS) -> bool:
    """Until its ssh server greets. A refusal may turn into a greeting in a moment; silence is a wall, and will not."""
    deadline = time.monotonic() + patience
    while (left := deadline - time.monotonic()) > 0:
        try:
            straight = _probe(job, min(left, PROBE_SECONDS))
        except TimeoutError:
            return False
        except OSError:
            straight = None
        if straight is not None:
            straight.close()
            return True
        time.sleep(min(0.1, max(0.0, left)))
    return False


def connect_directly(job: JobView, seconds: float = PROBE_SECONDS) -> socket.socket | None:
    """A connection to its ssh server, nothing read from it yet; None: there is none to be had."""
    try:
        return _probe(job, seconds)
    except (OSError, OverflowError):
        return None


def is_reachable(job: JobView, seconds: float = PROBE_SECONDS) -> bool:
    line = connect_directly(job, seconds)
    if line is not None:
        line.close()
    return line is not None


def _probe(job: JobView, seconds: float) -> socket.socket | None:
    return open_if_ssh(job.node_ip or "", job.node_port or 0, seconds)
