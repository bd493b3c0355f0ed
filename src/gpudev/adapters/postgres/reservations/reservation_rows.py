"""Rows of reservations: read as values, and changed by guarded writes.

Only this module knows both their columns and their fields. A change names the status and version that it expects. A row
that differs is left unchanged.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg

from gpudev.adapters.postgres.database.pool import Connection, from_row
from gpudev.adapters.postgres.queue.message_queue import send_dead_letter
from gpudev.adapters.postgres.reservations.personalization import delete_personalizations
from gpudev.domain.cluster import NodeShare
from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import MAX_MESSAGE_FAILURES, Estimate, TimeInterval
from gpudev.domain.reservations import changes as reservation_changes
from gpudev.domain.reservations.changes import Change, estimate_columns
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation, ReservationEvent, SshEndpoint

SELECT_RESERVATION = """
    SELECT r.*, u.username,
           (SELECT json_agg(json_build_array(s.rank, s.node, s.units, s.gpu_indices) ORDER BY s.rank)
            FROM reservation_shares s WHERE s.reservation_id = r.reservation_id) AS shares
    FROM reservations r JOIN api_users u USING (user_id)
"""


def reservation_from_row(row: asyncpg.Record) -> Reservation:
    return from_row(
        Reservation,
        row,
        status=Status(row["status"]),
        duration=timedelta(hours=row["duration_hours"]),
        ssh_public_keys=tuple(row["ssh_public_keys"]),
        estimate=_estimate_from_row(row),
        has_addons=row["furnished"],
        connection=connection_from_row(row),
        shares=tuple(
            NodeShare(rank, node, units, tuple(indices)) for rank, node, units, indices in row["shares"] or ()
        ),
    )


def event_from_row(row: asyncpg.Record) -> ReservationEvent:
    return from_row(ReservationEvent, row, status=Status(row["status"]))


def _estimate_from_row(row: asyncpg.Record) -> Estimate | None:
    if row["queue_position"] is None:
        return None
    interval, expected = None, row["expected_start_at"]
    if expected is not None:
        interval = TimeInterval(expected, row["expected_earliest_at"], row["expected_latest_at"])
    return Estimate(row["queue_position"], row["latest_start_at"], interval, row["wait_reason"] or "")


def connection_from_row(row: asyncpg.Record) -> SshEndpoint | None:
    if row["node_port"] is None:
        return None
    return SshEndpoint(row["node_ip"], row["node_port"], row["ssh_user"], row["ssh_host_key"] or "")


# Guarded writes: changes with their history, shares and dead letters. All of them run in the caller's transaction.

# The columns that a change may set. The values of each row are one JSON object, converted to the columns' types. So any
# number of changes with any fields is one statement with four parameters.
_GUARDED_UPDATE = """
    UPDATE reservations r
    SET (status, version, preparing_at, prepare_by, launched_at, expires_at, cancelled_at, reservation_ended,
         released_at, node_ip, node_port, ssh_user, ssh_command, ssh_host_key, queue_position, estimated_wait_minutes,
         estimated_start_at, latest_start_at, expected_start_at, expected_earliest_at, expected_latest_at,
         wait_reason, last_queue_update, step, failure_reason, warned_minutes, priority,
         launch_attempts, next_attempt_at, resent_at, setup_outcome, exit_code)
      = (SELECT n.status, r.version + 1, n.preparing_at, n.prepare_by, n.launched_at, n.expires_at, n.cancelled_at,
                n.reservation_ended, n.released_at, n.node_ip, n.node_port, n.ssh_user, n.ssh_command,
                n.ssh_host_key, n.queue_position, n.estimated_wait_minutes, n.estimated_start_at,
                n.latest_start_at, n.expected_start_at, n.expected_earliest_at, n.expected_latest_at,
                n.wait_reason, n.last_queue_update, n.step, n.failure_reason, n.warned_minutes, n.priority,
                n.launch_attempts, n.next_attempt_at, n.resent_at, n.setup_outcome, n.exit_code
         FROM jsonb_populate_record(r, c.changes) n)
    FROM unnest($1::uuid[], $2::text[], $3::int[], $4::jsonb[]) AS c (id, status, version, changes)
    WHERE r.reservation_id = c.id AND r.status = c.status AND r.version = c.version
    RETURNING r.reservation_id
"""
_SETTABLE_COLUMNS = frozenset(
    {
        "expires_at",
        "node_ip",
        "node_port",
        "ssh_user",
        "ssh_command",
        "ssh_host_key",
        "step",
        "failure_reason",
        "warned_minutes",
        "launch_attempts",
        "next_attempt_at",
        "preparing_at",
        "prepare_by",
        "launched_at",
        "cancelled_at",
        "queue_position",
        "estimated_start_at",
        "estimated_wait_minutes",
        "latest_start_at",
        "expected_start_at",
        "expected_earliest_at",
        "expected_latest_at",
        "wait_reason",
        "last_queue_update",
        "priority",
        "resent_at",
        "setup_outcome",
        "exit_code",
    }
)


_QUEUE_COLUMNS = (
    "queue_position",
    "estimated_wait_minutes",
    "estimated_start_at",
    "latest_start_at",
    "expected_start_at",
    "expected_earliest_at",
    "expected_latest_at",
    "wait_reason",
)
"""The estimate of a queued request. Cleared when it is not queued any more."""


async def write_changes(connection: Connection, changes: Sequence[Change], now: datetime) -> frozenset[ReservationId]:
    """Write the changes whose rows are still as expected. Returns the ids of their reservations."""
    if not changes:
        return frozenset()
    rows = await connection.fetch(
        _GUARDED_UPDATE,
        [change.reservation_id for change in changes],
        [change.status for change in changes],
        [change.version for change in changes],
        [_changed_columns(change, now) for change in changes],
    )
    done = frozenset(ReservationId(row["reservation_id"]) for row in rows)
    kept = [change for change in changes if change.reservation_id in done]
    await _write_shares(connection, [change for change in kept if change.shares is not None])
    await _release_reservations(connection, [change.reservation_id for change in kept if change.release])
    await _write_events(connection, kept, now)
    for change in kept:
        if change.dead_letter is not None:
            await send_dead_letter(connection, change.reservation_id, change.dead_letter)
    return done


async def write_queue_updates(
    connection: Connection, updates: Mapping[ReservationId, Estimate], now: datetime, teardown_margin: timedelta
) -> None:
    """Write the estimates of queued requests. Without version check and history; listeners are notified."""
    if not updates:
        return
    rows = [estimate_columns(estimate, now, teardown_margin) for estimate in updates.values()]
    await connection.execute(
        """
        WITH moved AS (
            UPDATE reservations r
            SET queue_position = u.queue_position, estimated_wait_minutes = u.estimated_wait_minutes,
                estimated_start_at = u.estimated_start_at, latest_start_at = u.latest_start_at,
                expected_start_at = u.expected_start_at, expected_earliest_at = u.expected_earliest_at,
                expected_latest_at = u.expected_latest_at, wait_reason = u.wait_reason, last_queue_update = $10
            FROM unnest($1::uuid[], $2::int[], $3::int[], $4::timestamptz[], $5::timestamptz[], $6::timestamptz[],
                        $7::timestamptz[], $8::timestamptz[], $9::text[])
                 AS u (id, queue_position, estimated_wait_minutes, estimated_start_at, latest_start_at,
                       expected_start_at, expected_earliest_at, expected_latest_at, wait_reason)
            WHERE r.reservation_id = u.id AND r.status IN ('pending', 'queued')
            RETURNING r.reservation_id
        )
        SELECT pg_notify('reservation_changes', reservation_id::text) FROM moved
        """,
        list(updates),
        *([row[name] for row in rows] for name in _QUEUE_COLUMNS),
        now,
    )


async def fail_reservation(connection: Connection, body: dict[str, Any], error: str, now: datetime) -> None:
    """Fail the reservation whose message became a dead letter. Does nothing if it is gone or has ended."""
    try:
        reservation_id = ReservationId(UUID(str(body.get("reservation_id"))))
    except ValueError:
        return
    row = await connection.fetchrow(SELECT_RESERVATION + "WHERE r.reservation_id = $1", reservation_id)
    reservation = None if row is None else reservation_from_row(row)
    if reservation is None or reservation.status.is_terminal:
        return
    reason = f"processing failed {MAX_MESSAGE_FAILURES} times: {error}"
    await write_changes(connection, [reservation_changes.failed(reservation, reason)], now)


def _changed_columns(change: Change, now: datetime) -> dict[str, Any]:
    unknown = change.fields.keys() - _SETTABLE_COLUMNS
    if unknown:
        raise ValueError(f"a change cannot set {', '.join(sorted(unknown))}")
    columns: dict[str, Any] = dict(change.fields)
    if change.to is not None:
        columns["status"] = change.to.value
        if change.to.is_terminal:
            columns["reservation_ended"] = now
    if not (change.to or change.status).is_waiting:
        columns |= dict.fromkeys(_QUEUE_COLUMNS)
    if change.release:
        columns["released_at"] = now
    return {name: _jsonable(value) for name, value in columns.items()}


def _jsonable(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


async def _write_shares(connection: Connection, changes: Sequence[Change]) -> None:
    if not changes:
        return
    await _free_gpus(connection, [change.reservation_id for change in changes], forget_shares=True)
    rows = [
        (change.reservation_id, share.rank, share.node, share.units, list(share.gpu_indices))
        for change in changes
        for share in change.shares or ()
    ]
    await connection.executemany(
        "INSERT INTO reservation_shares (reservation_id, rank, node, units, gpu_indices) VALUES ($1, $2, $3, $4, $5)",
        rows,
    )
    held = [(node, index, reservation_id) for reservation_id, _, node, _, indices in rows for index in indices]
    await connection.executemany(
        "INSERT INTO held_gpus (node, gpu_index, reservation_id) VALUES ($1, $2, $3)",
        held,
    )


async def _release_reservations(connection: Connection, ids: Sequence[ReservationId]) -> None:
    if not ids:
        return
    await _free_gpus(connection, ids, forget_shares=False)
    await delete_personalizations(connection, ids)
    await connection.execute(
        "UPDATE disks SET reservation_id = NULL, in_use = false WHERE reservation_id = ANY($1::uuid[])", list(ids)
    )


async def _free_gpus(connection: Connection, ids: Sequence[ReservationId], *, forget_shares: bool) -> None:
    await connection.execute("DELETE FROM held_gpus WHERE reservation_id = ANY($1::uuid[])", list(ids))
    if forget_shares:
        await connection.execute("DELETE FROM reservation_shares WHERE reservation_id = ANY($1::uuid[])", list(ids))


async def _write_events(connection: Connection, changes: Sequence[Change], now: datetime) -> None:
    events = [
        (
            change.reservation_id,
            now,
            change.event.kind,
            change.event.message,
            (change.to or change.status).value,
            change.version + 1,
        )
        for change in changes
        if change.event is not None
    ]
    await connection.executemany(
        """
        INSERT INTO reservation_events (reservation_id, at, kind, message, status, version)
        VALUES ($1, $2, $3, $4, $5, $6)
        """,
        events,
    )
    for change in changes:
        if change.event is None:
            await connection.execute("SELECT pg_notify('reservation_changes', $1)", str(change.reservation_id))
