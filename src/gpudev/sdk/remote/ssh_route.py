"""The route to a dev server: direct if a probe succeeds, else through the proxy."""

import os
import socket
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

from gpudev.sdk.api_address import PROBE_SECONDS, is_loopback, open_if_ssh
from gpudev.sdk.client_session import ClientSession
from gpudev.sdk.errors import UsageError
from gpudev.sdk.remote.openssh import check_connection
from gpudev.wire.reservations import JobView

_RECENTLY = timedelta(seconds=15)
_PATIENCE_SECONDS = 5.0


def choose_route(
    session: ClientSession, job: JobView, now: datetime, *, direct: bool, proxy: bool
) -> tuple[str, ...] | None:
    """The proxy command; None: direct. `direct` and `proxy` force a route."""
    if direct and proxy:
        raise UsageError("--direct and --proxy are mutually exclusive")
    check_connection(job)  # before it is used
    if proxy:
        return proxy_command(session, job)
    if is_loopback(job.node_ip or ""):
        # The loopback address of another machine cannot be reached from here.
        return None if direct or session.address.is_local else proxy_command(session, job)
    answers = wait_until_ssh_answers(job) if is_recently_launched(job, now) else not direct and is_reachable(job)
    return None if direct or answers else proxy_command(session, job)


def proxy_command(session: ClientSession, job: JobView, *, auto: bool = False) -> tuple[str, ...]:
    """For ssh's ProxyCommand. Names the API, so that it works in any environment."""
    options = ("--auto",) if auto else ()
    return (*own_program(), "proxy-command", *options, "--api-url", session.address.url, job.reservation_id)


def own_program() -> tuple[str, ...]:
    """The command that starts this program."""
    script = Path(sys.argv[0])
    if script.name == "gpu-dev" and script.is_absolute() and os.access(script, os.X_OK):
        return (str(script),)
    return (sys.executable, "-m", "gpudev.cli")


def is_recently_launched(job: JobView, now: datetime) -> bool:
    """Whether it became ready so recently, on another machine, that its network may not be set up yet."""
    since = now - job.launched_at if job.launched_at is not None else None
    return since is not None and since < _RECENTLY and not is_loopback(job.node_ip or "")


def wait_until_ssh_answers(job: JobView, patience: float = _PATIENCE_SECONDS) -> bool:
    """Retries refused connections, which may work soon. A timeout means a firewall: gives up at once."""
    deadline = time.monotonic() + patience
    while (left := deadline - time.monotonic()) > 0:
        try:
            direct_connection = _probe(job, min(left, PROBE_SECONDS))
        except TimeoutError:
            return False
        except OSError:
            direct_connection = None
        if direct_connection is not None:
            direct_connection.close()
            return True
        time.sleep(min(0.1, max(0.0, left)))
    return False


def connect_directly(job: JobView, seconds: float = PROBE_SECONDS) -> socket.socket | None:
    """A connection to its ssh server with nothing read from it; None: not reachable."""
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
