"""What every service does alike: log, wait for the schema it needs, stop when asked to."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Awaitable

import structlog

from gpudev.adapters.postgres.migrating import is_current
from gpudev.adapters.postgres.stores import Stores
from gpudev.domain.errors import Unavailable
from gpudev.settings import Settings

log = structlog.get_logger(__name__)


def configure_logging(settings: Settings) -> None:
    """Events with fields, one line each, to standard error."""
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if settings.log_format == "console" else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


async def wait_for_schema(stores: Stores) -> None:
    """Services wait for the schema they need: whoever migrates may come later."""
    said = False
    while True:
        with contextlib.suppress(Unavailable):
            async with stores.pool.acquire() as connection:
                if await is_current(connection):
                    return
        if not said:
            log.info("schema.waiting")
            said = True
        await asyncio.sleep(0.2)


async def until_stopped(work: Awaitable[None]) -> None:
    """Run until it ends by itself or SIGTERM or SIGINT asks for a clean stop."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
