"""Metrics, health checks and traces of a service. Metrics and health have a separate listener."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gpudev.adapters.postgres.database.metrics_queries import PostgresEventHistory, PostgresSystemState
from gpudev.bootstrap.listeners import SecondaryServer, bind_socket
from gpudev.bootstrap.service_runtime import DatabaseReadiness
from gpudev.domain.addresses import parse_bind_address
from gpudev.domain.errors import Invalid, Unavailable
from gpudev.metrics.exposition import CONTENT_TYPE, Exposition, SystemExposition
from gpudev.metrics.loop_watchdog import LoopWatchdog
from gpudev.ports.clock import SystemClock
from gpudev.ports.tracing import NO_TRACER, Tracer
from gpudev.settings import Settings

if TYPE_CHECKING:
    from gpudev.bootstrap.processor import RunningProcessor

log = structlog.get_logger(__name__)
_READY_TIMEOUT_SECONDS = 2.0


@dataclass(slots=True)
class HealthAndMetrics:
    """The endpoints of a service's metrics listener. A service that is still starting is alive but not ready."""

    exposition: Exposition = field(default_factory=Exposition)
    watchdog: LoopWatchdog | None = None
    check_ready: Callable[[], Awaitable[None]] | None = None
    """Raises Unavailable with the reason. None: still starting."""

    async def metrics(self, _request: Request) -> Response:
        return Response(await self.exposition.text(), headers={"content-type": CONTENT_TYPE})

    async def live(self, _request: Request) -> Response:
        stuck = self.watchdog.stuck_loops() if self.watchdog is not None else {}
        if stuck:
            message = ", ".join(f"{loop} has been stuck for {seconds:.0f} s" for loop, seconds in stuck.items())
            log.error("health.stuck", loops=stuck)
            return PlainTextResponse(f"{message}\n", 503)
        return PlainTextResponse("alive\n")

    async def ready(self, _request: Request) -> Response:
        if self.check_ready is None:
            return PlainTextResponse("starting\n", 503)
        try:
            async with asyncio.timeout(_READY_TIMEOUT_SECONDS):
                await self.check_ready()
        except (Unavailable, TimeoutError) as error:
            reason = (
                error.message.partition(": ")[0] if isinstance(error, Unavailable) else "the database does not answer"
            )
            return PlainTextResponse(f"{reason}\n", 503)
        return PlainTextResponse("ready\n")

    def attach_processor(self, running: "RunningProcessor") -> None:
        cache = getattr(running.cluster, "cache", None)
        self.exposition = SystemExposition(
            PostgresSystemState(running.stores.pool).load_state,
            PostgresEventHistory(running.stores.pool),
            SystemClock(),
            is_planning=lambda: running.processor.is_planning,
            staleness=cache.staleness if cache is not None else dict,
        )
        self.watchdog = running.processor.watchdog
        self.check_ready = DatabaseReadiness(running.stores).check

    def health_app(self) -> Starlette:
        """Health checks only, for a public listener."""
        return Starlette(routes=self._health_routes())

    def metrics_app(self) -> Starlette:
        return Starlette(routes=[Route("/metrics", self.metrics), *self._health_routes()])

    def _health_routes(self) -> list[Route]:
        return [Route("/health/live", self.live), Route("/health/ready", self.ready)]


@contextlib.asynccontextmanager
async def serve_metrics(settings: Settings, health: HealthAndMetrics) -> AsyncIterator[None]:
    """Serves metrics and health checks, if an address is configured."""
    if not settings.metrics_address:
        yield
        return
    address = parse_bind_address(settings.metrics_address)
    listener = bind_socket(address)
    config = uvicorn.Config(
        health.metrics_app(),
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
    )
    server = SecondaryServer(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="metrics")
    log.info("metrics.listening", address=str(address))
    try:
        yield
    finally:
        server.should_exit = server.force_exit = True
        await serving
        listener.close()


# Traces, where a collector is configured.


@contextlib.asynccontextmanager
async def open_tracer(settings: Settings, service: str) -> AsyncIterator[Tracer]:
    if not settings.otlp_url:
        yield NO_TRACER
        return
    try:
        from gpudev.adapters.otlp import OtlpTracer
    except ImportError as error:
        raise Invalid('GPU_DEV_OTLP_URL requires the tracing extra: pip install "gpu-dev[server,tracing]"') from error
    tracer = OtlpTracer(settings.otlp_url, service)
    try:
        yield tracer
    finally:
        await tracer.close()
