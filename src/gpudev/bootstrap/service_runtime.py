"""What every service does: logging, waiting for its schema, stopping on a signal."""

import asyncio
import contextlib
import gc
import logging
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import orjson
import structlog

from gpudev.adapters.postgres.database.migrator import is_schema_current
from gpudev.adapters.postgres.database.pool import connect
from gpudev.domain.errors import Unavailable
from gpudev.ports.access import redact_keys, sanitize_text
from gpudev.settings import DatabaseSettings, Settings

if TYPE_CHECKING:
    from gpudev.adapters.postgres.stores import Stores

log = structlog.get_logger(__name__)
_RETRY_SECONDS = 1.0


def configure_logging(settings: Settings) -> None:
    """Events with fields, one line each, to standard error."""
    for_people = settings.log_format == "console"
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if for_people else structlog.processors.JSONRenderer(_dump_json)
    )
    lines = structlog.PrintLoggerFactory(sys.stderr) if for_people else structlog.BytesLoggerFactory(sys.stderr.buffer)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _single_line if for_people else _without_keys,
            renderer,
        ],
        logger_factory=lines,
        cache_logger_on_first_use=True,
    )
    libraries = logging.getLogger()
    if not any(isinstance(handler, _StructlogHandler) for handler in libraries.handlers):
        libraries.addHandler(_StructlogHandler(logging.WARNING))


class _StructlogHandler(logging.Handler):
    """What libraries say (the web server, the event loop): as all else, or it could forge lines and show keys."""

    def emit(self, record: logging.LogRecord) -> None:
        level = min(record.levelno, logging.ERROR)
        log.log(level, "library.said", library=record.name, message=record.getMessage(), exc_info=record.exc_info)


def _without_keys(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Wherever a key got into (an address, an error's words), it does not get into the log. JSON hides the rest."""
    for name, value in event.items():
        if isinstance(value, str) and "gpudev_" in value:
            event[name] = redact_keys(value)
    return event


def _single_line(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """For people's eyes and terminals: what came from outside can neither begin a line of its own nor erase one. Only
    a traceback, which is ours, has several lines."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = redact_keys(value) if name == "exception" else sanitize_text(value, 2000)
    return event


def _dump_json(event: Any, default: Callable[[Any], Any], **_: Any) -> bytes:
    return orjson.dumps(event, default=default)


def tune_garbage_collector() -> None:
    """What is there at the start stays: the garbage collector need not look at it again, and looks less often at the
    rest. A full collection stops every request for tens of milliseconds."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


async def check_schema(stores: "Stores") -> None:
    """The database answers and has what this program needs. Raises Unavailable."""
    async with stores.pool.acquire() as connection:
        if not await is_schema_current(connection):
            raise Unavailable("the database's schema is not up to date: gpu-dev-server migrate")


async def wait_for_schema(stores: "Stores") -> None:
    """Services wait for the schema they need: whoever migrates may come later."""
    said = False
    while True:
        with contextlib.suppress(Unavailable):
            await check_schema(stores)
            return
        if not said:
            log.info("schema.waiting")
            said = True
        await asyncio.sleep(0.2)


async def wait_for_database(database: DatabaseSettings, seconds: float) -> None:
    """Until it answers: whoever is installed together with it may be there first. Raises Unavailable, saying why, when
    that takes longer."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            connection = await connect(database)
        except Unavailable as error:
            if time.monotonic() >= deadline:
                raise
            log.info("database.waiting", reason=str(error))
            await asyncio.sleep(min(_RETRY_SECONDS, max(0.0, deadline - time.monotonic())))
        else:
            await connection.close()
            return


async def run_until_stopped(work: Awaitable[None]) -> None:
    """Run until it ends by itself or SIGTERM or SIGINT asks for a clean stop."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
