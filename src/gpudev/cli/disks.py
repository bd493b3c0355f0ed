"""Disks as the commands ask for them, with refusals that name the next step for disks."""

from typing import TypeVar

from gpudev.cli.api_calls import Api, Reply
from gpudev.sdk.errors import NotFound, Unreachable
from gpudev.sdk.http.endpoints import Call

_T = TypeVar("_T")


def ask(api: Api, call: Call[_T]) -> Reply[_T]:
    try:
        return api.ask(call)
    except NotFound as error:
        if "`gpu-dev" in error.message:
            raise
        step = "`gpu-dev disk list` shows your disks, `gpu-dev disk snapshots NAME` their snapshots"
        raise error.advising(step) from error
    except Unreachable as error:
        if not error.sent or call.method == "GET":
            raise
        step = "It may have been heard all the same; `gpu-dev disk list` shows how your disks are"
        raise error.advising(step) from error
