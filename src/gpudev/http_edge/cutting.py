"""An answer that cannot be brought to its end is cut off: nobody must take it for whole. The web server does so only
for a fault of ours, which this is not, and says so at length."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

_ABORT_EXTENSION = "gpu-dev.cut"


def allow_abort(scope: MutableMapping[str, Any], transport: asyncio.Transport) -> None:
    """For whoever answers this request."""
    scope["extensions"] = {**scope.get("extensions", {}), _ABORT_EXTENSION: {"transport": transport}}


async def abort_response(scope: Mapping[str, Any], receive: Callable[[], Awaitable[Mapping[str, Any]]]) -> bool:
    """Hang up, and wait until that is seen. False: this server does not offer it."""
    offered = scope.get("extensions", {}).get(_ABORT_EXTENSION)
    if offered is None:
        return False
    offered["transport"].abort()
    while (await receive())["type"] != "http.disconnect":
        pass
    return True
