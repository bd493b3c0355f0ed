"""Reservations on PostgreSQL: submit, queries, changes, moves, and a cache of the unreleased ones."""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg

from gpudev.adapters.postgres.database.leases import check_epoch
from gpudev.adapters.postgres.database.pool import Connection, Pool
from gpudev.adapters.postgres.disks.operations import apply_disk_quota, may_create_disk
from gpudev.adapters.postgres.queue.estimates import write_estimates
from gpudev.adapters.postgres.queue.message_queue import current_request_id, send_message
from gpudev.adapters.postgres.reservations import reservation_rows
from gpudev.adapters.postgres.reservations.personalization import delete_personalizations, insert_personalization
from gpudev.adapters.postgres.reservations.reservation_rows import write_changes, write_queue_updates
from gpudev.domain.disks.names import DEFAULT_DISK, NO_DISK
from gpudev.domain.errors import DiskHeld, IdempotencyMismatch, IdTaken, LimitReached, NotFound, Stale
from gpudev.domain.ids import DiskId, ReservationId, UserId, new_disk_id, pod_name, short_id
from gpudev.domain.queue import RESERVATION_QUEUE, Estimate, EstimateRecord, MessageCause
from gpudev.domain.reservations.changes import Change
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation, ReservationDraft, ReservationEvent
from gpudev.ports.leases import Lease
from gpudev.ports.reservations import NO_LIMITS, ExtensionCount, JobQuery, QueueAhead, UserLimits

# The last value is the request's id, which the function reads from a setting. An argument sets it, so that it is set
# before the call.
_SUBMIT = """
    SELECT * FROM create_reservation(
        (SELECT $1::uuid FROM set_config('gpudev.request_id', $25, true)),
        $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24)
"""


class PostgresReservations:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def submit(
        self,
        draft: ReservationDraft,
        *,
        idempotency_key: str | None,
        fingerprint: str,
        now: datetime,
        limits: UserLimits = NO_LIMITS,
    ) -> Reservation:
        async with self._submit_connection(draft, limits) as (connection, allowed):
            if not allowed.personalization.is_empty:  # first: the submit's locks must be held as briefly as possible
                await insert_personalization(connection, allowed.reservation_id, allowed.personalization)
            written = await _submit(connection, allowed, idempotency_key, fingerprint, now=now, limits=limits)
            if not written["is_new"]:
                if not allowed.personalization.is_empty:
                    await delete_personalizations(connection, [allowed.reservation_id])
                return await _get_reservation(connection, ReservationId(written["reservation_id"]))
            return _new_reservation(allowed, written, now)

    @contextlib.asynccontextmanager
    async def _submit_connection(
        self, draft: ReservationDraft, limits: UserLimits
    ) -> AsyncIterator[tuple[Connection, ReservationDraft]]:
        """One statement needs no transaction. A submit that may create a disk holds the quota's lock meanwhile."""
        async with self._pool.acquire() as connection:
            disks = limits.disks if limits.disks and await may_create_disk(connection, draft) else None
            if disks is None and draft.personalization.is_empty:
                yield connection, draft
                return
            async with connection.transaction():
                yield connection, draft if disks is None else await apply_disk_quota(connection, draft, disks)

    async def find_submission(self, user_id: UserId, idempotency_key: str, fingerprint: str) -> Reservation | None:
        async with self._pool.acquire() as connection:
            earlier = await _find_idempotency_key(connection, user_id, idempotency_key, fingerprint)
            return None if earlier is None else await _get_reservation(connection, earlier)

    async def find_reservation(self, reservation_id: ReservationId) -> Reservation | None:
        async with self._pool.acquire() as connection:
            return await _find_reservation(connection, reservation_id)

    async def find_by_prefix(self, prefix: str, user_id: UserId | None, limit: int = 5) -> list[Reservation]:
        digits = prefix.replace("-", "")
        first, last = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
        async with self._pool.acquire() as connection:
            found = await connection.fetch(
                reservation_rows.SELECT_RESERVATION
                + """
                WHERE r.reservation_id BETWEEN $1 AND $2 AND ($3::int IS NULL OR r.user_id = $3)
                ORDER BY r.released_at IS NOT NULL, r.seq DESC LIMIT $4
                """,
                first,
                last,
                user_id,
                limit,
            )
        return [reservation_rows.reservation_from_row(row) for row in found]

    async def list_jobs(self, query: JobQuery) -> list[Reservation]:
        async with self._pool.acquire() as connection:
            found = await connection.fetch(
                reservation_rows.SELECT_RESERVATION
                + """
                WHERE ($1::int IS NULL OR r.user_id = $1)
                  AND (cardinality($2::text[]) = 0 OR r.status = ANY($2::text[]))
                  AND ($3::text IS NULL OR r.gpu_type = $3)
                  AND ($4::timestamptz IS NULL OR r.created_at >= $4)
                  AND ($5::timestamptz IS NULL OR r.created_at < $5)
                  AND ($6::bigint IS NULL OR r.seq < $6)
                ORDER BY r.seq DESC LIMIT $7
                """,
                query.user_id,
                [status.value for status in query.statuses],
                query.gpu_type,
                query.created_after,
                query.created_before,
                query.before_seq,
                query.limit,
            )
        return [reservation_rows.reservation_from_row(row) for row in found]

    async def unreleased(self, gpu_type: str | None = None) -> list[Reservation]:
        async with self._pool.acquire() as connection:
            found = await connection.fetch(
                reservation_rows.SELECT_RESERVATION
                + "WHERE r.released_at IS NULL AND ($1::text IS NULL OR r.gpu_type = $1) ORDER BY r.seq",
                gpu_type,
            )
        return [reservation_rows.reservation_from_row(row) for row in found]

    async def count_ahead(self, reservation: Reservation, planned_seq: int, overhead: timedelta) -> QueueAhead:
        async with self._pool.acquire() as connection:
            row = await connection.fetchrow(
                """
                SELECT count(*) AS count, count(*) FILTER (WHERE seq > $4) AS new,
                       coalesce(sum(duration_hours) FILTER (WHERE seq > $4), 0) AS new_hours
                FROM reservations
                WHERE released_at IS NULL AND gpu_type = $1 AND status IN ('pending', 'queued')
                  AND (priority > $2 OR (priority = $2 AND seq < $3))
                """,
                reservation.gpu_type,
                reservation.priority,
                reservation.seq,
                planned_seq,
            )
        assert row is not None
        return QueueAhead(row["count"], row["new"], timedelta(hours=row["new_hours"]) + row["new"] * overhead)

    async def extensions(self, gpu_type: str) -> ExtensionCount:
        async with self._pool.acquire() as connection:
            count = await connection.fetchval("SELECT extensions FROM gpu_types WHERE gpu_type = $1", gpu_type)
        return ExtensionCount(gpu_type, count or 0)

    async def apply_change(
        self,
        change: Change,
        *,
        now: datetime,
        cause: MessageCause | None = None,
        extension_count: ExtensionCount | None = None,
    ) -> Reservation:
        async with self._pool.transaction() as connection:
            if extension_count is not None:
                await _count_extension(connection, extension_count)
            done = await write_changes(connection, [change], now)
            if not done:
                raise Stale("the reservation has changed meanwhile; try again")
            changed = await _get_reservation(connection, change.reservation_id)
            if cause is not None:
                await send_message(connection, change.reservation_id, cause)
            return changed

    async def apply_decisions(
        self,
        lease: Lease,
        changes: Sequence[Change],
        updates: Mapping[ReservationId, Estimate],
        acknowledge: Sequence[int],
        *,
        now: datetime,
        teardown_margin: timedelta,
        estimates: Sequence[EstimateRecord] = (),
    ) -> frozenset[ReservationId]:
        async with self._pool.transaction() as connection:
            await check_epoch(connection, lease)
            done = await write_changes(connection, changes, now)
            await write_queue_updates(connection, updates, now, teardown_margin)
            await write_estimates(connection, estimates)
            if acknowledge:
                await connection.execute("SELECT pgmq.delete($1, $2::bigint[])", RESERVATION_QUEUE, list(acknowledge))
            return done

    async def events(self, reservation_id: ReservationId, after: int = 0) -> list[ReservationEvent]:
        async with self._pool.acquire() as connection:
            found = await connection.fetch(
                "SELECT * FROM reservation_events WHERE reservation_id = $1 AND event_id > $2 ORDER BY event_id",
                reservation_id,
                after,
            )
        return [reservation_rows.event_from_row(row) for row in found]


async def _count_extension(connection: Connection, expected: ExtensionCount) -> None:
    counted = await connection.fetchval(
        "UPDATE gpu_types SET extensions = extensions + 1 WHERE gpu_type = $1 AND extensions = $2 RETURNING extensions",
        expected.gpu_type,
        expected.count,
    )
    if counted is None:
        raise Stale("another reservation was extended meanwhile; try again")


async def _find_reservation(connection: Connection, reservation_id: ReservationId) -> Reservation | None:
    row = await connection.fetchrow(reservation_rows.SELECT_RESERVATION + "WHERE r.reservation_id = $1", reservation_id)
    return None if row is None else reservation_rows.reservation_from_row(row)


async def _get_reservation(connection: Connection, reservation_id: ReservationId) -> Reservation:
    found = await _find_reservation(connection, reservation_id)
    if found is None:
        raise NotFound(f"reservation {short_id(reservation_id)} not found")
    return found


async def _find_idempotency_key(
    connection: Connection, user_id: UserId, key: str, fingerprint: str
) -> ReservationId | None:
    earlier = await connection.fetchrow(
        "SELECT fingerprint, reservation_id FROM idempotency_keys WHERE user_id = $1 AND key = $2", user_id, key
    )
    if earlier is None:
        return None
    if earlier["fingerprint"] != fingerprint:
        raise IdempotencyMismatch("this Idempotency-Key was used for a different request; use a new one")
    return ReservationId(earlier["reservation_id"])


async def _submit(
    connection: Connection,
    draft: ReservationDraft,
    idempotency_key: str | None,
    fingerprint: str,
    *,
    now: datetime,
    limits: UserLimits,
) -> asyncpg.Record:
    """Writes row, history, disk claim and message in one call (`create_reservation`).

    With a used idempotency key, the returned id is that of the earlier reservation.
    """
    try:
        written = await connection.fetchrow(
            _SUBMIT,
            draft.reservation_id,
            draft.user_id,
            draft.github_user,
            draft.name,
            draft.image,
            draft.command,
            draft.gpu_type,
            draft.gpu_count,
            draft.node_count,
            draft.duration.total_seconds() / 3600,
            draft.priority,
            list(draft.ssh_public_keys),
            pod_name(draft.reservation_id),
            None if draft.disk_name == NO_DISK else draft.disk_name or DEFAULT_DISK,
            draft.disk_name is not None,
            draft.scratch_reason,
            new_disk_id(),
            None if draft.max_wait is None else now + draft.max_wait,
            limits.max_queued,
            limits.max_gpus,
            RESERVATION_QUEUE,
            idempotency_key,
            fingerprint,
            now,
            current_request_id() or "",
        )
    except asyncpg.PostgresError as error:
        _translate_submit_error(error, draft)
        raise
    assert written is not None  # a function with OUT parameters returns one row
    return written


def _new_reservation(draft: ReservationDraft, written: asyncpg.Record, now: datetime) -> Reservation:
    """The row that was just written, without reading it back."""
    disk_id = written["disk_id"]
    return Reservation(
        **draft.spec_fields(),
        seq=written["seq"],
        status=Status.PENDING,
        version=1,
        created_at=now,
        disk_id=None if disk_id is None else DiskId(disk_id),
        disk_name=None if disk_id is None else draft.disk_name or DEFAULT_DISK,
        scratch_reason=written["scratch_reason"],
        wait_until=None if draft.max_wait is None else now + draft.max_wait,
        request_id=current_request_id(),
    )


def _translate_submit_error(error: asyncpg.PostgresError, draft: ReservationDraft) -> None:
    """Translates the errors that `create_reservation` raises. Others pass."""
    name = draft.disk_name or DEFAULT_DISK
    if isinstance(error, asyncpg.UniqueViolationError):
        if error.constraint_name == "one_live_holder_per_disk":
            raise DiskHeld(f"disk {name!r} was just taken by another of your reservations") from error
        raise IdTaken("that reservation id is taken; try again") from error
    if error.sqlstate == "GD001":
        raise IdempotencyMismatch("this Idempotency-Key was used for a different request; use a new one") from error
    if error.sqlstate == "GD003":
        raise LimitReached(
            "another request of yours reached your limit at the same moment; check your reservations and try again"
        ) from error
    if error.sqlstate == "GD002":
        raise DiskHeld(
            f"disk {name!r} is held by reservation {error} until it ends; use another disk, or 'none' for scratch space"
        ) from error


class UnreleasedCache:
    """All unreleased reservations in memory, for the planning loop, which reads them often.

    A refresh reads only changed rows in full. PostgreSQL's row version (xmin) shows the changes of all writers.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._row_versions: dict[UUID, int] = {}
        self._reservations: dict[UUID, Reservation] = {}

    async def refresh(self) -> list[Reservation]:
        """All that are queued, run, or still hold something, in order of arrival."""
        async with self._pool.acquire() as connection:
            found = await connection.fetch(
                "SELECT reservation_id, xmin::text::bigint AS mark FROM reservations WHERE released_at IS NULL"
            )
            versions: dict[UUID, int] = {row["reservation_id"]: row["mark"] for row in found}
            changed = [rid for rid, version in versions.items() if self._row_versions.get(rid) != version]
            fresh = (
                await connection.fetch(
                    reservation_rows.SELECT_RESERVATION
                    + "WHERE r.reservation_id = ANY($1::uuid[]) AND r.released_at IS NULL",
                    changed,
                )
                if changed
                else []
            )
        known = {rid: self._reservations[rid] for rid in versions if rid in self._reservations}
        known.update({row["reservation_id"]: reservation_rows.reservation_from_row(row) for row in fresh})
        # A row that was written between the two statements has an old version here: the next refresh reads it again.
        self._row_versions, self._reservations = versions, known
        return sorted(known.values(), key=lambda reservation: reservation.seq)


# Moves.


class PostgresMoves:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def begin_move(self, change: Change, *, now: datetime) -> None:
        async with self._pool.transaction() as connection:
            await _write_change(connection, change, now)
            await connection.execute(
                "INSERT INTO reservation_moves (reservation_id, begun_at) VALUES ($1, $2) ON CONFLICT DO NOTHING",
                change.reservation_id,
                now,
            )
            await send_message(connection, change.reservation_id, MessageCause.CANCELLED)

    async def list_unfinished_moves(self) -> Sequence[ReservationId]:
        async with self._pool.acquire() as connection:
            rows = await connection.fetch(
                "SELECT reservation_id FROM reservation_moves WHERE NOT done ORDER BY begun_at, reservation_id"
            )
        return [ReservationId(row["reservation_id"]) for row in rows]

    async def finish_move(self, left: ReservationId, change: Change | None, *, now: datetime) -> None:
        async with self._pool.transaction() as connection:
            is_ours = await connection.fetchval(
                "UPDATE reservation_moves SET done = TRUE WHERE reservation_id = $1 AND NOT done RETURNING TRUE", left
            )
            if not is_ours:
                return
            if change is not None:
                await _write_change(connection, change, now)
                await _copy_addons(connection, left, change.reservation_id, now)
            await connection.execute("DELETE FROM reservation_setups WHERE reservation_id = $1", left)
            await connection.execute("DELETE FROM jupyter_servers WHERE reservation_id = $1", left)


async def _write_change(connection: Connection, change: Change, now: datetime) -> None:
    if not await write_changes(connection, [change], now):
        raise Stale("the reservation has changed meanwhile; try again")


async def _copy_addons(connection: Connection, old_id: ReservationId, new_id: ReservationId, now: datetime) -> None:
    """Addons that the new reservation has already are kept."""
    has_addons = await connection.fetchval(
        """
        INSERT INTO interiors (reservation_id, wanted, due_at)
        SELECT $2, 1, $3 WHERE EXISTS (SELECT FROM reservation_users WHERE reservation_id = $1)
                            OR EXISTS (SELECT FROM jupyter_servers WHERE reservation_id = $1)
        ON CONFLICT (reservation_id) DO UPDATE SET wanted = interiors.wanted + 1, due_at = $3
        RETURNING TRUE
        """,
        old_id,
        new_id,
        now,
    )
    if not has_addons:
        return
    await connection.execute(
        """
        INSERT INTO reservation_users (reservation_id, github_user, ssh_public_keys, added_by, added_at)
        SELECT $2, github_user, ssh_public_keys, added_by, added_at FROM reservation_users WHERE reservation_id = $1
        ON CONFLICT DO NOTHING
        """,
        old_id,
        new_id,
    )
    await connection.execute(
        """
        INSERT INTO jupyter_servers (reservation_id, token, public_key, private_key, since)
        SELECT $2, token, public_key, private_key, $3 FROM jupyter_servers WHERE reservation_id = $1
        ON CONFLICT DO NOTHING
        """,
        old_id,
        new_id,
        now,
    )
