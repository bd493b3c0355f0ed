"""Queries for metrics: the system's state, and the events since the last query.

All counts use indexes, so that they do not depend on the length of the history. New events are found by their row
numbers. Transactions may commit in another order than they got their numbers, so the last rows are read again each
time, and the numbers that were counted are remembered.
"""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg

from gpudev.adapters.postgres.database.pool import Connection, Pool
from gpudev.domain.queue import MESSAGE_QUEUES, PLANNING_LEASE, dead_letter_queue
from gpudev.metrics.event_counters import CountedEvent, DiskCorrection, DiskOperationEnded, ReservationTransition
from gpudev.metrics.system_state import GpuTypeState, MessageQueueState, SystemState

_OVERLAP_ROWS = 300
_MAX_ROWS = 20_000

_SELECT_TYPES = """
    SELECT gpu_type, total_cluster_gpus, available_gpus, last_availability_update
    FROM gpu_types WHERE is_active OR total_cluster_gpus > 0
"""
_RESERVATIONS = """
    SELECT gpu_type, CASE WHEN status IN ('expired', 'cancelled', 'failed') THEN 'ending' ELSE status END AS status,
           count(*) AS count, sum(greatest(gpu_count, 1)) AS units, min(created_at) AS oldest
    FROM reservations WHERE released_at IS NULL GROUP BY 1, 2
"""
_SELECT_ALLOCATED = """
    SELECT r.gpu_type, sum(s.units) AS units FROM reservations r JOIN reservation_shares s USING (reservation_id)
    WHERE r.released_at IS NULL GROUP BY 1
"""
_USERS = """
    SELECT count(DISTINCT user_id) FROM reservations WHERE released_at IS NULL AND status IN ('preparing', 'active')
"""
_NODES = """
    SELECT gpu_type, CASE WHEN NOT ready THEN 'not_ready' WHEN schedulable THEN 'open' ELSE 'closed' END AS state,
           count(*) AS count
    FROM cluster_nodes GROUP BY 1, 2
"""
_DISKS = """
    SELECT CASE WHEN is_deleted THEN 'deleted' WHEN in_use THEN 'in_use' ELSE 'idle' END AS state, count(*) AS count
    FROM disks GROUP BY 1
"""
_DISK_OPERATIONS = """
    SELECT kind, state, count(*) AS count, min(asked_at) AS oldest
    FROM disk_operations WHERE finished_at IS NULL GROUP BY 1, 2
"""
_STEPS = """
    SELECT e.event_id, e.kind, e.at, r.gpu_type, r.created_at, r.preparing_at, t.expected, t.latest
    FROM reservation_events e JOIN reservations r USING (reservation_id)
    LEFT JOIN LATERAL (
        SELECT (array_agg(expected ORDER BY estimate_id))[1] AS expected, min(latest) AS latest
        FROM reservation_estimates WHERE reservation_id = e.reservation_id AND made_at <= e.at
    ) t ON e.kind = 'preparing'
    WHERE e.event_id > $1 ORDER BY e.event_id LIMIT $2
"""
_CORRECTIONS = "SELECT event_id, kind FROM disk_events WHERE event_id > $1 ORDER BY event_id LIMIT $2"
_OPERATIONS = """
    SELECT operation_id, seq, kind, state, asked_at, finished_at FROM disk_operations
    WHERE seq > $1 OR operation_id = ANY($2::uuid[]) ORDER BY seq LIMIT $3
"""


class PostgresSystemState:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def load_state(self, now: datetime) -> SystemState:
        """Raises Unavailable."""
        async with self._pool.acquire() as connection:
            operations = await connection.fetch(_DISK_OPERATIONS)
            lease = await connection.fetchrow(
                "SELECT expires_at > clock_timestamp() AS is_held, looked_at FROM leases WHERE name = $1",
                PLANNING_LEASE,
            )
            return SystemState(
                at=now,
                types=await _load_types(connection, now),
                queues=await _load_queues(connection),
                users_served=await connection.fetchval(_USERS),
                disks={row["state"]: row["count"] for row in await connection.fetch(_DISKS)},
                disk_operations={(row["kind"], row["state"]): row["count"] for row in operations},
                oldest_disk_operation_seconds=max(
                    (_age_seconds(row["oldest"], now) for row in operations), default=0.0
                ),
                is_planning=bool(lease and lease["is_held"]),
                examined_seconds_ago=_age_seconds(lease["looked_at"], now) if lease and lease["looked_at"] else None,
            )


class _RowTracker:
    """Row numbers that were counted, so that each row counts once."""

    def __init__(self) -> None:
        self._counted: set[int] = set()
        self._newest = 0

    def begin(self, newest: int | None) -> None:
        """Count only rows after `newest`. None: there are no rows yet."""
        self._newest = newest or 0
        self._counted = set(range(max(0, self._newest - _OVERLAP_ROWS) + 1, self._newest + 1))

    @property
    def lower_bound(self) -> int:
        return max(0, self._newest - _OVERLAP_ROWS)

    def is_new(self, number: int) -> bool:
        if number in self._counted:
            return False
        self._counted.add(number)
        self._newest = max(self._newest, number)
        return True

    def drop_old(self) -> None:
        self._counted = {number for number in self._counted if number > self.lower_bound}


class PostgresEventHistory:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._steps, self._corrections = _RowTracker(), _RowTracker()
        self._newest_operation = 0
        self._open_operations: set[UUID] = set()

    async def begin(self) -> None:
        """Events before this moment are not counted. Raises Unavailable."""
        async with self._pool.acquire() as connection:
            self._steps.begin(await connection.fetchval("SELECT max(event_id) FROM reservation_events"))
            self._corrections.begin(await connection.fetchval("SELECT max(event_id) FROM disk_events"))
            self._newest_operation = await connection.fetchval("SELECT coalesce(max(seq), 0) FROM disk_operations")
            unfinished = await connection.fetch("SELECT operation_id FROM disk_operations WHERE finished_at IS NULL")
            self._open_operations = {row["operation_id"] for row in unfinished}

    async def since_last_time(self) -> list[CountedEvent]:
        """The new events. Raises Unavailable; the next call then returns them."""
        async with self._pool.acquire() as connection:
            steps = await connection.fetch(_STEPS, self._steps.lower_bound, _MAX_ROWS)
            events = await connection.fetch(_CORRECTIONS, self._corrections.lower_bound, _MAX_ROWS)
            operations = await connection.fetch(
                _OPERATIONS, self._newest_operation, list(self._open_operations), _MAX_ROWS
            )
        counted: list[CountedEvent] = [_step_from_row(row) for row in steps if self._steps.is_new(row["event_id"])]
        for row in events:
            if self._corrections.is_new(row["event_id"]) and row["kind"] in ("imported", "reconciled"):
                counted.append(DiskCorrection(row["kind"]))
        self._steps.drop_old()
        self._corrections.drop_old()
        return [*counted, *self._ended_operations(operations)]

    def _ended_operations(self, rows: Sequence[asyncpg.Record]) -> list[CountedEvent]:
        ended: list[CountedEvent] = []
        for row in rows:
            self._newest_operation = max(self._newest_operation, row["seq"])
            if row["finished_at"] is None:
                self._open_operations.add(row["operation_id"])
                continue
            self._open_operations.discard(row["operation_id"])
            ended.append(DiskOperationEnded(row["kind"], row["state"], row["finished_at"] - row["asked_at"]))
        return ended


def _step_from_row(row: asyncpg.Record) -> ReservationTransition:
    return ReservationTransition(
        kind=row["kind"],
        gpu_type=row["gpu_type"],
        at=row["at"],
        created_at=row["created_at"],
        preparing_at=row["preparing_at"],
        first_expected=row["expected"],
        earliest_promise=row["latest"],
    )


async def _load_types(connection: Connection, now: datetime) -> tuple[GpuTypeState, ...]:
    by_status: defaultdict[str, dict[str, asyncpg.Record]] = defaultdict(dict)
    for row in await connection.fetch(_RESERVATIONS):
        by_status[row["gpu_type"]][row["status"]] = row
    held = {row["gpu_type"]: row["units"] for row in await connection.fetch(_SELECT_ALLOCATED)}
    nodes: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for row in await connection.fetch(_NODES):
        nodes[row["gpu_type"]][row["state"]] = row["count"]
    types = []
    for row in await connection.fetch(_SELECT_TYPES):
        name, statuses = row["gpu_type"], by_status[row["gpu_type"]]
        waiting = [statuses[status] for status in ("pending", "queued") if status in statuses]
        updated_at = row["last_availability_update"]
        types.append(
            GpuTypeState(
                gpu_type=name,
                capacity=row["total_cluster_gpus"],
                used=held.get(name, 0),
                idle=row["available_gpus"],
                nodes=nodes[name],
                by_status={
                    status: statuses[status]["count"] if status in statuses else 0
                    for status in ("pending", "queued", "preparing", "active", "ending")
                },
                queue_length=sum(row["count"] for row in waiting),
                queue_units=sum(row["units"] for row in waiting),
                oldest_wait_seconds=max((_age_seconds(row["oldest"], now) for row in waiting), default=0.0),
                availability_age_seconds=None if updated_at is None else _age_seconds(updated_at, now),
            )
        )
    return tuple(types)


async def _load_queues(connection: Connection) -> tuple[MessageQueueState, ...]:
    found = []
    for queue in MESSAGE_QUEUES:
        # Each queue is a table. Its name comes from our own list, never from outside.
        waiting = await connection.fetchrow(
            f"SELECT count(*) AS count, extract(epoch FROM now() - min(enqueued_at)) AS age FROM pgmq.q_{queue}"  # noqa: S608
        )
        dead = await connection.fetchval(f"SELECT count(*) FROM pgmq.q_{dead_letter_queue(queue)}")  # noqa: S608
        assert waiting is not None  # an aggregate returns one row
        found.append(MessageQueueState(queue, waiting["count"], max(0.0, float(waiting["age"] or 0)), dead))
    return tuple(found)


def _age_seconds(at: datetime, now: datetime) -> float:
    return max(timedelta(0), now - at).total_seconds()
