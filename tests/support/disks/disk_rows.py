"""Recorded disks for tests: put there by hand, and read as they stand."""

from dataclasses import asdict
from typing import Any
from uuid import UUID, uuid4

from gpudev.adapters.postgres.disks.records import PostgresDiskRecords
from gpudev.adapters.postgres.stores import Stores
from gpudev.ports.disks import DiskRecord
from gpudev.workflows.disks.reconcile_disks import DiskReconcileReport
from support.paper_cloud import BEGINNING


async def all_rows(stores: Stores) -> list[dict[str, Any]]:
    async with stores.pool.acquire() as connection:
        return [dict(row) for row in await connection.fetch("SELECT * FROM disks ORDER BY user_id, created_at")]


async def only(records: PostgresDiskRecords) -> DiskRecord:
    (found,) = await records.list_records()
    return found


async def add(stores: Stores, username: str = "ada", disk_name: str = "work", **columns: Any) -> UUID:
    """A recorded disk; columns by their names."""
    disk_id = uuid4()
    columns = {"created_at": BEGINNING, "last_used": BEGINNING, **columns}
    async with stores.pool.transaction() as connection:
        await connection.execute("INSERT INTO api_users (username) VALUES ($1) ON CONFLICT DO NOTHING", username)
        await connection.execute(
            """
            INSERT INTO disks SELECT (jsonb_populate_record(NULL::disks, $2::jsonb || jsonb_build_object(
                'user_id', (SELECT user_id FROM api_users WHERE username = $1)))).*
            """,
            username,
            {
                "disk_id": str(disk_id),
                "disk_name": disk_name,
                "in_use": False,
                "is_deleted": False,
                "is_backing_up": False,
                "snapshot_count": 0,
                **{name: getattr(value, "isoformat", lambda v=value: v)() for name, value in columns.items()},
            },
        )
    return disk_id


def counts(report: DiskReconcileReport) -> dict[str, int]:
    return {name: count for name, count in asdict(report.statistics).items() if count}
