"""Messages in PGMQ. Each names an id to examine.

The rows are the truth, so a message that is read twice, late or never does no harm.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import asyncpg
import structlog

from gpudev.adapters.postgres.database.pool import Connection, Pool
from gpudev.domain.backoff import backoff
from gpudev.domain.errors import NotFound
from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import (
    MAX_MESSAGE_FAILURES,
    MESSAGE_QUEUES,
    RESERVATION_QUEUE,
    MessageCause,
    dead_letter_queue,
)
from gpudev.ports.queue import QueueMessage

QUEUE_INSERT_CHANNEL = "pgmq.q_gpu_reservations.INSERT"

OnDeadLetter: TypeAlias = Callable[[Connection, dict[str, Any], str, datetime], Awaitable[None]]
"""Called in the transaction that makes a message a dead letter, with the message's body and the last error: what
follows for its reservation."""


@dataclass(frozen=True, slots=True)
class PgmqMetrics:
    queue: str
    length: int
    visible: int
    oldest_age_seconds: int | None
    total: int


class PostgresMessageQueue:
    def __init__(self, pool: Pool, backoff: timedelta, on_dead_letter: OnDeadLetter) -> None:
        self._pool = pool
        self._backoff = backoff
        self._on_dead_letter = on_dead_letter

    async def read(self, queue: str, lease_for: timedelta, limit: int) -> list[QueueMessage]:
        async with self._pool.acquire() as connection:
            found = await connection.fetch(
                "SELECT msg_id, read_ct, enqueued_at, message FROM pgmq.read($1, $2, $3)",
                queue,
                int(lease_for.total_seconds()),
                limit,
            )
        return [_message_from_row(row) for row in found]

    async def fail(self, queue: str, message: QueueMessage, error: str, *, now: datetime) -> bool:
        failures = int(message.body.get("failures", 0)) + 1
        body = {**message.body, "failures": failures, "error": error[:2000]}
        async with self._pool.transaction() as connection:
            deleted = await connection.fetchval("SELECT pgmq.delete($1, $2::bigint)", queue, message.msg_id)
            if not deleted:
                return False
            if failures < MAX_MESSAGE_FAILURES:
                delay = now + backoff(failures, self._backoff)
                await connection.execute("SELECT pgmq.send($1, $2::jsonb, $3::timestamptz)", queue, body, delay)
                return False
            await connection.execute("SELECT pgmq.send($1, $2::jsonb)", dead_letter_queue(queue), body)
            if queue == RESERVATION_QUEUE:
                await self._on_dead_letter(connection, message.body, error, now)
            return True

    async def acknowledge(self, queue: str, messages: Sequence[int]) -> None:
        async with self._pool.acquire() as connection:
            await connection.execute("SELECT pgmq.delete($1, $2::bigint[])", queue, list(messages))

    async def list_queue_metrics(self) -> list[PgmqMetrics]:
        """The metrics of all our queues, for operators."""
        async with self._pool.acquire() as connection:
            found = []
            for queue in _all_queues():
                row = await connection.fetchrow("SELECT * FROM pgmq.metrics($1)", queue)
                assert row is not None  # metrics returns one row or raises
                found.append(
                    PgmqMetrics(
                        queue,
                        row["queue_length"],
                        row["queue_visible_length"],
                        row["oldest_msg_age_sec"],
                        row["total_messages"],
                    )
                )
        return found

    async def peek_messages(self, queue: str, limit: int = 100) -> list[QueueMessage]:
        """Read messages without leasing them."""
        statement = _STATEMENTS[_check_queue_name(queue)].peek
        async with self._pool.acquire() as connection:
            return [_message_from_row(row) for row in await connection.fetch(statement, limit)]

    async def retry_dead_letter(self, queue: str, msg_id: int) -> None:
        """Send a dead letter back to its queue, with its failures reset."""
        letters = dead_letter_queue(queue)
        async with self._pool.transaction() as connection:
            body = await _take_message(connection, letters, msg_id)
            body = {name: value for name, value in body.items() if name not in ("failures", "error")}
            await connection.execute(
                "SELECT pgmq.send($1, $2::jsonb)", queue, {**body, "cause": MessageCause.RETRIED.value}
            )

    async def drop_message(self, queue: str, msg_id: int) -> None:
        async with self._pool.transaction() as connection:
            await _take_message(connection, _check_queue_name(queue), msg_id)


@dataclass(frozen=True, slots=True)
class _QueueStatements:
    peek: str
    take: str


def _queue_statements(queue: str) -> _QueueStatements:
    # Each queue is a table. Its name comes from our own list, never from outside.
    table = f"pgmq.q_{queue}"
    return _QueueStatements(
        peek=f"SELECT msg_id, read_ct, enqueued_at, message FROM {table} ORDER BY msg_id LIMIT $1",  # noqa: S608
        take=f"DELETE FROM {table} WHERE msg_id = $1 RETURNING message",  # noqa: S608
    )


def _all_queues() -> list[str]:
    return [name for queue in MESSAGE_QUEUES for name in (queue, dead_letter_queue(queue))]


_STATEMENTS = {queue: _queue_statements(queue) for queue in _all_queues()}


def _check_queue_name(queue: str) -> str:
    if queue not in _STATEMENTS:
        raise NotFound(f"no queue named {queue!r} (expected {', '.join(_STATEMENTS)})")
    return queue


def _message_from_row(row: asyncpg.Record) -> QueueMessage:
    body = row["message"]
    # Any program may have sent anything. A message that is not an object names no id.
    return QueueMessage(
        row["msg_id"], row["read_ct"], row["enqueued_at"], body if isinstance(body, dict) else {"message": body}
    )


async def _take_message(connection: Connection, queue: str, msg_id: int) -> dict[str, Any]:
    body: dict[str, Any] | None = await connection.fetchval(_STATEMENTS[_check_queue_name(queue)].take, msg_id)
    if body is None:
        raise NotFound(f"message {msg_id} not found in queue {queue!r}")
    return body


# Sending, in the caller's transaction


async def send_message(connection: Connection, reservation_id: ReservationId, cause: MessageCause) -> None:
    """Call it last in a transaction: PGMQ's notification locks a row of its own until the commit."""
    body = {"reservation_id": str(reservation_id), "cause": cause.value}
    request_id = current_request_id()
    if request_id is not None:  # for the processor's log
        body["request_id"] = request_id
    await connection.execute("SELECT pgmq.send($1, $2::jsonb)", RESERVATION_QUEUE, body)


async def send_dead_letter(connection: Connection, reservation_id: ReservationId, error: str) -> None:
    body = {"reservation_id": str(reservation_id), "error": error}
    await connection.execute("SELECT pgmq.send($1, $2::jsonb)", dead_letter_queue(RESERVATION_QUEUE), body)


def current_request_id() -> str | None:
    """The id of the request that is being answered. None: there is none."""
    request_id: str | None = structlog.contextvars.get_contextvars().get("request_id")
    return request_id
