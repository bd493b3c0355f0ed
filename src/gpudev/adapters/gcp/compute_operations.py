"""Changes in GCP: each is an operation that goes on after its request was answered. Here it is begun and looked at."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from uuid import uuid4

from gpudev.adapters.gcp import errors
from gpudev.adapters.gcp.client import Caller
from gpudev.adapters.gcp.permissions import Permission
from gpudev.adapters.gcp.resources import last_part
from gpudev.domain.errors import Unavailable

_T = TypeVar("_T")
_KIND = "compute#operation"


async def begin(caller: Caller, permission: Permission, client: str, method: str, request: Any) -> Any:
    """One request id for all attempts of this call: GCP does it once. Another call has another id, since GCP answers a
    known id with what became of it, failure included; names keep things from being made twice then."""
    request.request_id = str(uuid4())
    return await caller.call(permission, getattr(caller.client(client), method), request, _KIND)


async def finish(caller: Caller, operation: Any, permission: Permission) -> None:
    """Looks until it is done. Raises what became of it."""

    async def is_done() -> bool | None:
        nonlocal operation
        if operation.status != caller.messages.Operation.Status.DONE:
            operation = await look(caller, operation)
        return True if operation.status == caller.messages.Operation.Status.DONE else None

    await poll(caller, is_done, f"{permission} is still going on")
    failure = errors.of_operation(operation, permission)
    if failure is not None:
        raise failure


async def refuse_failed(caller: Caller, operation: Any, permission: Permission) -> None:
    """Raises why an operation failed, if it did; it need not be done."""
    operation = await look(caller, operation)
    failure = errors.of_operation(operation, permission)
    if failure is not None:
        raise failure


async def look(caller: Caller, operation: Any) -> Any:
    if operation.zone:
        request = caller.messages.GetZoneOperationRequest(
            project=caller.project, zone=last_part(operation.zone), operation=operation.name
        )
        permission, client = Permission.GET_ZONE_OPERATION, "ZoneOperations"
    else:
        request = caller.messages.GetGlobalOperationRequest(project=caller.project, operation=operation.name)
        permission, client = Permission.GET_GLOBAL_OPERATION, "GlobalOperations"
    try:
        return await caller.call(permission, caller.client(client).get, request, _KIND)
    except errors.Missing as error:
        raise Unavailable(f"GCP does not know what became of {operation.name}.") from error


async def poll(caller: Caller, ask: Callable[[], Awaitable[_T | None]], waiting_for: str) -> _T:
    """Asks again and again, ever more rarely, until there is an answer."""
    pause = caller.pace.poll_every.total_seconds()
    patience = caller.settings.operation_patience
    try:
        async with asyncio.timeout(patience.total_seconds()):
            while (answer := await ask()) is None:
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, caller.pace.slowest_poll.total_seconds())
            return answer
    except TimeoutError as error:
        raise Unavailable(f"GCP: {waiting_for} after {patience}; ask again later.") from error
