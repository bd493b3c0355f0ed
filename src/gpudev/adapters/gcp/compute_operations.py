"""Changes in GCP: each is an operation that goes on after its request was answered. Here it is begun and looked at."""

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
    """One request id for all attempts of this call: GCP does it once. Another call has another id, since GCP answers a
    known id with what became of it, failure included; names keep things from being made twice then."""
    request.request_id = str(uuid4())
    return await gcp.call(permission, getattr(gcp.service_client(client), method), request, _OPERATION_KIND)


async def await_operation(gcp: GcpClient, operation: Any, permission: Permission) -> None:
    """Looks until it is done. Raises what became of it."""

    async def is_done() -> bool | None:
        nonlocal operation
        if operation.status != gcp.messages.Operation.Status.DONE:
            operation = await get_operation(gcp, operation)
        return True if operation.status == gcp.messages.Operation.Status.DONE else None

    await poll_until(gcp, is_done, f"{permission} is still going on")
    failure = errors.error_from_operation(operation, permission)
    if failure is not None:
        raise failure


async def check_not_failed(gcp: GcpClient, operation: Any, permission: Permission) -> None:
    """Raises why an operation failed, if it did; it need not be done."""
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
        raise Unavailable(f"GCP does not know what became of {operation.name}.") from error


async def poll_until(gcp: GcpClient, ask: Callable[[], Awaitable[_T | None]], waiting_for: str) -> _T:
    """Asks again and again, ever more rarely, until there is an answer."""
    pauses = growing_pauses(gcp.pace.poll_every, gcp.pace.slowest_poll, factor=1.5)
    patience = gcp.pace.operation_patience
    try:
        async with asyncio.timeout(patience.total_seconds()):
            while (answer := await ask()) is None:
                pause = next(pauses)
                await asyncio.sleep(pause.total_seconds())
            return answer
    except TimeoutError as error:
        raise Unavailable(f"GCP: {waiting_for} after {patience}; ask again later.") from error
