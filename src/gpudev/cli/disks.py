"""Disks as the commands ask for them, with refusals that name the next step for disks."""

from typing import TypeVar

from gpudev.cli.api_calls import ApiReply, CommandApi
from gpudev.sdk.errors import NotFound, Unreachable
from gpudev.sdk.http.endpoints import ApiCall

_T = TypeVar("_T")


def fetch_disk_call(api: CommandApi, call: ApiCall[_T]) -> ApiReply[_T]:
    try:
        return api.fetch(call)
    except NotFound as error:
        if "`gpu-dev" in error.message:
            raise
        step = "`gpu-dev disk list` shows your disks, `gpu-dev disk snapshots NAME` their snapshots"
        raise error.with_next_step(step) from error
    except Unreachable as error:
        if not error.sent or call.method == "GET":
            raise
        step = "It may have been heard all the same; `gpu-dev disk list` shows how your disks are"
        raise error.with_next_step(step) from error
