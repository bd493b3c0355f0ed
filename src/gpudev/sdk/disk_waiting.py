"""Waiting for what is done to a disk: look at the operation until it is over."""

import time
from collections.abc import Callable

from gpudev.sdk.effects import Notify, Pause, Routine
from gpudev.sdk.errors import OperationFailed, Unreachable
from gpudev.sdk.http.api_client import ApiClient
from gpudev.sdk.http.disk_endpoints import get_operation
from gpudev.sdk.http.endpoints import ApiReply
from gpudev.wire.disks import OperationView

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


def wait_for_operation(
    core: ApiClient,
    first: ApiReply[OperationView],
    *,
    patience: float,
    on_change: Callable[[OperationView], object] | None = None,
    on_lost: Callable[[str], object] | None = None,
    now: Callable[[], float] = time.monotonic,
) -> Routine[ApiReply[OperationView]]:
    """`on_change` is told of each look at it, `on_lost` when the API stays away; after `patience` seconds of that it
    is given up."""
    reply, pause, heard_at = first, _FIRST_PAUSE, now()
    while reply.value.state not in ("done", "failed"):
        if on_change is not None:
            yield Notify(on_change, reply.value)
        yield Pause(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)
        try:
            reply = yield from core.fetch(get_operation(reply.value.disk_name, reply.value.operation_id))
        except Unreachable as error:
            if now() - heard_at > patience:
                raise
            if on_lost is not None:
                yield Notify(on_lost, error.message)
        else:
            heard_at = now()
    return reply


def check_operation(operation: OperationView) -> OperationView:
    """Raise what a failure means to somebody who waited."""
    if operation.state != "failed":
        return operation
    name = operation.disk_name
    is_new = operation.kind in ("create", "clone")
    raise OperationFailed(
        f"{operation.kind} of disk {name!r} failed: {operation.error or 'no reason was given'}",
        f"There is no disk {name!r}; everything else is as it was"
        if is_new
        else f"`gpu-dev disk show {name}` shows how it is",
    )
