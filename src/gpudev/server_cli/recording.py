"""How operators' commands get into the audit log: at once, with the name of who runs them on this machine."""

import getpass
import os
import socket

from gpudev.adapters.postgres.stores import Stores
from gpudev.ports.auditing import AuditEntry, harmless
from gpudev.ports.clock import SystemClock


async def record(stores: Stores, action: str, target: str | None = None, outcome: str = "ok") -> None:
    entry = AuditEntry(
        at=SystemClock().now(),
        action=f"gpu-dev-server {action}",
        outcome=outcome,
        username=console_user(),
        target=harmless(target) if target else None,
    )
    await stores.audit_log.append([entry])


def console_user() -> str:
    return f"{_who()}@{socket.gethostname()} (console)"


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid {os.getuid()}"
