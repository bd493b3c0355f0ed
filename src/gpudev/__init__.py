"""gpu-dev: shared GPU developer servers.

`from gpudev import GpuDev, AsyncGpuDev`: the Python client. It is loaded on first use, so that other modules of this
package do not load it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpudev.sdk.client import AsyncGpuDev, GpuDev
    from gpudev.sdk.errors import (
        ClientError,
        CommandFailed,
        Forbidden,
        LocalError,
        NotFound,
        NotInTime,
        OperationFailed,
        Rejected,
        ReservationEnded,
        Unauthenticated,
        Unavailable,
        Unreachable,
        UsageError,
    )
    from gpudev.sdk.resources.dev_servers import AsyncServer, Server
    from gpudev.version import __version__
    from gpudev.wire.reservations import JobView

__all__ = [
    "AsyncGpuDev",
    "AsyncServer",
    "ClientError",
    "CommandFailed",
    "Forbidden",
    "GpuDev",
    "JobView",
    "LocalError",
    "NotFound",
    "NotInTime",
    "OperationFailed",
    "Rejected",
    "ReservationEnded",
    "Server",
    "Unauthenticated",
    "Unavailable",
    "Unreachable",
    "UsageError",
    "__version__",
]
_MODULES = {
    "GpuDev": "sdk.client",
    "AsyncGpuDev": "sdk.client",
    "Server": "sdk.resources.dev_servers",
    "AsyncServer": "sdk.resources.dev_servers",
    "JobView": "wire.reservations",
    "__version__": "version",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'gpudev' has no attribute {name!r}")
    return getattr(import_module(f"gpudev.{_MODULES.get(name, 'sdk.errors')}"), name)


def __dir__() -> list[str]:
    """What completion offers, though it is not loaded yet."""
    return sorted({*globals(), *__all__})
