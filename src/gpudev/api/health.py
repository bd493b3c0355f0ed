"""Health, truthfully: alive means this process answers; ready means that the database answers it, too.

A missing processor does not make the API unready (it can take and show reservations), but it is told.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from gpudev import __version__
from gpudev.api.answering import JsonResponse
from gpudev.domain.errors import Unavailable
from gpudev.wire.cluster import Health

READY_TIMEOUT_SECONDS = 2.0
_NOT_READY: dict[int | str, dict[str, Any]] = {503: {"model": Health, "description": "The database does not answer"}}


@dataclass(frozen=True, slots=True)
class HealthEndpoints:
    ping: Callable[[], Awaitable[None]]
    is_planning: Callable[[], Awaitable[bool]]
    timeout_seconds: float = READY_TIMEOUT_SECONDS

    def router(self) -> APIRouter:
        router = APIRouter(tags=["health"])
        add = router.add_api_route
        add("/health", self.ready, response_model=Health, summary="The same as /health/ready", responses=_NOT_READY)
        add("/health/live", self.live, response_model=Health, summary="Does this process answer?")
        add("/health/ready", self.ready, response_model=Health, summary="Can it work?", responses=_NOT_READY)
        return router

    async def live(self) -> Response:
        return JsonResponse(Health(status="ok", version=__version__, checks={}))

    async def ready(self) -> Response:
        """503 while the database does not answer within 2 seconds. `checks.processor` says whether anybody starts
        what is asked for."""
        try:
            async with asyncio.timeout(self.timeout_seconds):
                await self.ping()
                planning = await self.is_planning()
        except (Unavailable, TimeoutError):
            checks = {"database": "does not answer", "processor": "unknown"}
            return JsonResponse(Health(status="unavailable", version=__version__, checks=checks), 503)
        checks = {"database": "ok", "processor": "alive" if planning else "not alive"}
        return JsonResponse(Health(status="ok" if planning else "degraded", version=__version__, checks=checks))
