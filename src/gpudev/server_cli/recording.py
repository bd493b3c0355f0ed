"""How operators' commands get into the audit log: at once, with the name of who runs them on this machine."""

import getpass
import os
import socket

from gpudev.adapters.postgres.stores import Stores
from gpudev.ports.auditing import AuditEntry, sanitize_text
from gpudev.ports.clock import SystemClock


async def record_command(stores: Stores, action: str, target: str | None = None, outcome: str = "ok") -> None:
    entry = AuditEntry(
        at=SystemClock().now(),
        action=f"gpu-dev-server {action}",
        outcome=outcome,
        username=console_user(),
        target=sanitize_text(target) if target else None,
    )
    await stores.audit_log.append([entry])


def console_user() -> str:
    return f"{_os_user()}@{socket.gethostname()} (console)"


def _os_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid {os.getuid()}"
