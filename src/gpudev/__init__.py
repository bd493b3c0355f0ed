"""gpu-dev: shared GPU developer servers.

`from gpudev import GpuDev, AsyncGpuDev`: the client for programs. It is loaded when it is first asked for, so that
whatever else begins with this package stays as light as it is.
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
        Refused,
        ReservationEnded,
        Unauthenticated,
        Unavailable,
        Unreachable,
        UsageError,
    )

__version__ = "0.1.0"
__all__ = [
    "AsyncGpuDev",
    "ClientError",
    "CommandFailed",
    "Forbidden",
    "GpuDev",
    "LocalError",
    "NotFound",
    "NotInTime",
    "OperationFailed",
    "Refused",
    "ReservationEnded",
    "Unauthenticated",
    "Unavailable",
    "Unreachable",
    "UsageError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'gpudev' has no attribute {name!r}")
    home = "client" if name in ("GpuDev", "AsyncGpuDev") else "errors"
    return getattr(import_module(f"gpudev.sdk.{home}"), name)
