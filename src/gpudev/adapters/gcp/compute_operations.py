"""Operations of the Compute API: starting changes, and waiting for them.

A change continues after the response to its request.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from uuid import uuid4

from gpudev.adapters.gcp import errors
from gpudev.adapters.gcp.client import GcpClient
from gpudev.adapters.gcp.permissions import Permission
from gpudev.adapters.gcp.resources import last_segment
from gpudev.domain.backoff import growing_pauses
from gpudev.domain.errors import Unavailable

_T = TypeVar("_T")
_OPERATION_KIND = "compute#operation"


async def begin_operation(gcp: GcpClient, permission: Permission, client: str, method: str, request: Any) -> Any:
    """All attempts of one call have one request id, so GCP executes it once. Another call has another id, because for a
    known id GCP returns the old result, also a failure. Between calls, unique names prevent a second creation."""
    request.request_id = str(uuid4())
    return await gcp.call(permission, getattr(gcp.service_client(client), method), request, _OPERATION_KIND)


async def await_operation(gcp: GcpClient, operation: Any, permission: Permission) -> None:
    """Wait until it is done. Raises its error."""

    async def is_done() -> bool | None:
        nonlocal operation
        if operation.status != gcp.messages.Operation.Status.DONE:
            operation = await get_operation(gcp, operation)
        return True if operation.status == gcp.messages.Operation.Status.DONE else None

    await poll_until(gcp, is_done, f"{permission} is not finished")
    failure = errors.error_from_operation(operation, permission)
    if failure is not None:
        raise failure


async def check_not_failed(gcp: GcpClient, operation: Any, permission: Permission) -> None:
    """Raises the error of a failed operation; it may still be running."""
    operation = await get_operation(gcp, operation)
    failure = errors.error_from_operation(operation, permission)
    if failure is not None:
        raise failure


async def get_operation(gcp: GcpClient, operation: Any) -> Any:
    if operation.zone:
        request = gcp.messages.GetZoneOperationRequest(
            project=gcp.project, zone=last_segment(operation.zone), operation=operation.name
        )
        permission, client = Permission.GET_ZONE_OPERATION, "ZoneOperations"
    else:
        request = gcp.messages.GetGlobalOperationRequest(project=gcp.project, operation=operation.name)
        permission, client = Permission.GET_GLOBAL_OPERATION, "GlobalOperations"
    try:
        return await gcp.call(permission, gcp.service_client(client).get, request, _OPERATION_KIND)
    except errors.GcpNotFound as error:
        raise Unavailable(f"GCP operation {operation.name} not found; its result is unknown") from error


async def poll_until(gcp: GcpClient, poll: Callable[[], Awaitable[_T | None]], problem: str) -> _T:
    """Poll at growing intervals until the result is not None. `problem`: what the error says after a timeout."""
    pauses = growing_pauses(gcp.pace.poll_every, gcp.pace.slowest_poll, factor=1.5)
    patience = gcp.pace.operation_patience
    try:
        async with asyncio.timeout(patience.total_seconds()):
            while (result := await poll()) is None:
                pause = next(pauses)
                await asyncio.sleep(pause.total_seconds())
            return result
    except TimeoutError as error:
        raise Unavailable(f"GCP: {problem} after {patience}; try again later") from error
