"""Audit log on PostgreSQL. The API's role may insert and read entries, never change or delete them."""

from collections.abc import Sequence

import asyncpg

from gpudev.adapters.postgres.database.pool import Pool
from gpudev.ports.access import AuditEntry, AuditQuery


class PostgresAuditLog:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def append(self, entries: Sequence[AuditEntry]) -> None:
        """One statement, so that all entries are written or none."""
        rows = [
            (e.at, e.username, e.key_prefix, e.action, e.target, e.address, e.outcome, e.status, e.request_id)
            for e in entries
        ]
        async with self._pool.acquire() as connection:
            await connection.execute(
                """
                INSERT INTO audit_log (at, username, key_prefix, action, target, address, outcome, status, request_id)
                SELECT * FROM unnest($1::timestamptz[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[],
                                     $7::text[], $8::integer[], $9::text[])
                """,
                *(list(column) for column in zip(*rows, strict=True)),
            )

    async def find_entries(self, query: AuditQuery) -> list[AuditEntry]:
        async with self._pool.acquire() as connection:
            found = await connection.fetch(
                """
                SELECT * FROM (
                    SELECT * FROM audit_log
                    WHERE ($1::text IS NULL OR username = $1) AND ($2::text IS NULL OR position($2 IN action) > 0)
                      AND ($3::text IS NULL OR position($3 IN target) > 0) AND ($4::text IS NULL OR address = $4)
                      AND ($5::text IS NULL OR outcome = $5) AND ($6::timestamptz IS NULL OR at >= $6)
                      AND entry_id > $7
                    ORDER BY entry_id DESC LIMIT $8
                ) newest ORDER BY entry_id
                """,
                query.username,
                query.action,
                query.target,
                query.address,
                query.outcome,
                query.since,
                query.after,
                query.limit,
            )
        return [_entry_from_row(row) for row in found]


def _entry_from_row(row: asyncpg.Record) -> AuditEntry:
    return AuditEntry(**dict(row))
