"""What every service needs: logging, waiting for database and schema, stopping on a signal."""

import asyncio
import contextlib
import gc
import logging
import signal
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import orjson
import structlog

from gpudev.adapters.postgres.database.migrator import is_schema_current
from gpudev.adapters.postgres.database.pool import connect
from gpudev.domain.errors import Unavailable
from gpudev.log_output import LineLoggerFactory, dropped_as_json, dropped_as_text
from gpudev.ports.access import redact_keys, sanitize_text
from gpudev.settings import DatabaseSettings, Settings

if TYPE_CHECKING:
    from gpudev.adapters.postgres.stores import Stores

log = structlog.get_logger(__name__)
_RETRY_SECONDS = 1.0
_WRITABLE_SECONDS = 5.0


def configure_logging(settings: Settings) -> None:
    """Structured events, one per line, to standard error."""
    is_console = settings.log_format == "console"
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if is_console else structlog.processors.JSONRenderer(_dump_json)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _single_line if is_console else _without_keys,
            renderer,
        ],
        logger_factory=LineLoggerFactory(dropped_as_text if is_console else dropped_as_json),
        cache_logger_on_first_use=True,
    )
    libraries = logging.getLogger()
    if not any(isinstance(handler, _StructlogHandler) for handler in libraries.handlers):
        libraries.addHandler(_StructlogHandler(logging.WARNING))


class _StructlogHandler(logging.Handler):
    """Log records of libraries, in the same format: otherwise they could forge lines and reveal keys."""

    def emit(self, record: logging.LogRecord) -> None:
        level = min(record.levelno, logging.ERROR)
        fields: dict[str, Any] = {"library": record.name, "message": record.getMessage()}
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and level < logging.ERROR:
            # A warning is about something that the library handles. In an outage of the database the pool writes many.
            fields["error"] = str(error) or type(error).__name__
        else:
            fields["exc_info"] = record.exc_info
        log.log(level, "library.log", **fields)


def _without_keys(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Redacts API keys anywhere in an event. JSON escapes everything else."""
    for name, value in event.items():
        if isinstance(value, str) and "gpudev_" in value:
            event[name] = redact_keys(value)
    return event


def _single_line(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """For terminals: external text can neither start a new line nor erase one. Only tracebacks have several lines."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = redact_keys(value) if name == "exception" else sanitize_text(value, 2000)
    return event


def _dump_json(event: Any, default: Callable[[Any], Any], **_: Any) -> bytes:
    return orjson.dumps(event, default=default)


def tune_garbage_collector() -> None:
    """Excludes the objects of the startup from garbage collection and collects less often: a full collection stops all
    requests for tens of milliseconds."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


async def check_schema(stores: "Stores") -> None:
    """Raises Unavailable if the database does not answer or its schema is not current."""
    async with stores.pool.acquire() as connection:
        if not await is_schema_current(connection):
            raise Unavailable("the database schema is not up to date: run gpu-dev-server migrate")


class DatabaseReadiness:
    """Whether the database can be used: it answers, its schema is current, and it can write.

    Writing is tried rarely, and shared by all who ask: more often while it does not work, so that the end of an outage
    is noticed soon.
    """

    def __init__(self, stores: "Stores", monotonic: Callable[[], float] = time.monotonic) -> None:
        self._stores = stores
        self._monotonic = monotonic
        self._error: Unavailable | None = None
        self._checked_at = float("-inf")
        self._checking = asyncio.Lock()

    async def check(self) -> None:
        """Raises Unavailable with the reason."""
        await check_schema(self._stores)
        async with self._checking:
            if self._monotonic() - self._checked_at >= (_WRITABLE_SECONDS if self._error is None else _RETRY_SECONDS):
                await self._check_writable()
        if self._error is not None:
            raise Unavailable(self._error.message) from self._error

    async def _check_writable(self) -> None:
        before, self._error = self._error, None
        try:
            await self._stores.pool.check_writable()
        except Unavailable as error:
            self._error = error
        self._checked_at = self._monotonic()
        if self._error is not None and before is None:
            log.error("database.cannot_write", error=self._error.message)
        elif before is not None and self._error is None:
            log.info("database.can_write")


async def wait_for_schema(stores: "Stores") -> None:
    """Waits for a current schema: the migration may run after the service has started."""
    logged = False
    while True:
        with contextlib.suppress(Unavailable):
            await check_schema(stores)
            return
        if not logged:
            log.info("schema.waiting")
            logged = True
        await asyncio.sleep(0.2)


async def wait_for_database(database: DatabaseSettings, seconds: float) -> None:
    """Waits until the database answers: in a new installation the service may start first. Raises Unavailable with the
    reason after `seconds`."""
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
    """Runs until the work ends, or until SIGTERM or SIGINT, which stop it cleanly."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
