"""Rows of disks, operations, snapshots and volumes: conversion to values, and SQL to write them."""

from typing import Any

import asyncpg

from gpudev.adapters.postgres.database.pool import from_row
from gpudev.domain.disks.operations import (
    DiskState,
    Operation,
    OperationKind,
    OperationState,
    SnapshotReason,
    SnapshotRecord,
    SnapshotStatus,
    VolumeRecord,
    VolumeStatus,
)

# A row's xmin is its version: every write changes it, also one from outside gpu-dev. The holder is the first unreleased
# reservation: one that has ended keeps the disk until its release, and its successor waits.
SELECT_DISK = """
    SELECT d.*, d.xmin::text::bigint AS mark, u.username,
           (SELECT r.reservation_id FROM reservations r WHERE r.disk_id = d.disk_id AND r.released_at IS NULL
            ORDER BY r.seq LIMIT 1) AS holder
    FROM disks d JOIN api_users u USING (user_id)
"""
INSERT_DISK = """
    INSERT INTO disks (disk_id, user_id, disk_name, created_at, size_gb, zone)
    VALUES ($1, $2, $3, $4, $5, $6)
"""
UPDATE_DISK = """
    UPDATE disks d
    SET disk_name = $3, size_gb = $4, ebs_volume_id = $5, zone = $6, saved_as = $7, is_deleted = $8, deleted_at = $9,
        purge_started_at = $10, purged_at = $11, latest_snapshot_content_s3 = $12,
        volume_missing_since = CASE WHEN d.ebs_volume_id = $5::varchar THEN d.volume_missing_since END
    WHERE d.disk_id = $1 AND d.xmin::text::bigint = $2
    RETURNING d.disk_id
"""
INSERT_OPERATION = """
    INSERT INTO disk_operations (operation_id, kind, user_id, disk_id, state, step, blocks, asked_at, request_key,
                                 reservation_id, source_id, snapshot_id, size_gb, zone, name, contents)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)
    RETURNING *
"""
UPDATE_OPERATION = """
    UPDATE disk_operations o
    SET state = $3, step = $4, blocks = $5, attempts = $6, refusals = $7, next_attempt_at = $8, error = $9,
        result = $10, finished_at = $11, version = o.version + 1
    FROM disk_operations old
    WHERE o.operation_id = $1 AND o.version = $2 AND o.finished_at IS NULL AND old.operation_id = o.operation_id
    RETURNING o.*, old.blocks AS blocked
"""
WRITE_SNAPSHOT = """
    INSERT INTO disk_snapshots (snapshot_id, disk_id, operation_id, volume_id, why, status, created_at, cloud_id,
                                size_gb, contents, error, lacks)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
    ON CONFLICT (snapshot_id) DO UPDATE
    SET status = EXCLUDED.status, cloud_id = EXCLUDED.cloud_id, size_gb = EXCLUDED.size_gb,
        contents = EXCLUDED.contents, error = EXCLUDED.error, lacks = EXCLUDED.lacks
"""
SETTLE_SNAPSHOT = """
    WITH settled AS (
        UPDATE disk_snapshots SET status = $2, size_gb = $3, error = $4, lacks = $5
        WHERE snapshot_id = $1 AND status = 'pending' RETURNING snapshot_id, disk_id
    ), event AS (
        INSERT INTO disk_events (disk_id, at, kind, message, by)
        SELECT disk_id, $7, 'snapshot', $6, 'processor' FROM settled WHERE $6::text IS NOT NULL
    )
    SELECT snapshot_id FROM settled
"""
WRITE_VOLUME = """
    INSERT INTO disk_volumes (token, disk_id, operation_id, status, zone, size_gb, made_at, from_snapshot, volume_id,
                              retired_by, saved_in)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
    ON CONFLICT (token) DO UPDATE
    SET status = EXCLUDED.status, size_gb = EXCLUDED.size_gb, volume_id = EXCLUDED.volume_id,
        retired_by = EXCLUDED.retired_by, saved_in = EXCLUDED.saved_in
"""


def disk_update_values(disk: DiskState) -> tuple[Any, ...]:
    return (
        disk.disk_id,
        disk.mark,
        disk.name,
        disk.size_gb,
        disk.volume_id,
        disk.zone,
        disk.saved_as,
        disk.is_deleted,
        disk.deleted_at,
        disk.purge_started_at,
        disk.purged_at,
        disk.contents,
    )


def operation_insert_values(operation: Operation, key: str | None) -> tuple[Any, ...]:
    return (
        operation.operation_id,
        operation.kind,
        operation.user_id,
        operation.disk_id,
        operation.state,
        operation.step,
        list(operation.blocks),
        operation.asked_at,
        key,
        operation.reservation_id,
        operation.source_id,
        operation.snapshot_id,
        operation.size_gb,
        operation.zone,
        operation.name,
        operation.contents,
    )


def operation_update_values(operation: Operation) -> tuple[Any, ...]:
    return (
        operation.operation_id,
        operation.version,
        operation.state,
        operation.step,
        list(operation.blocks),
        operation.attempts,
        operation.rejections,
        operation.next_attempt_at,
        operation.error,
        operation.result,
        operation.finished_at,
    )


def snapshot_values(record: SnapshotRecord) -> tuple[Any, ...]:
    return (
        record.snapshot_id,
        record.disk_id,
        record.operation_id,
        record.volume_id,
        record.why,
        record.status,
        record.created_at,
        record.cloud_id,
        record.size_gb,
        record.contents,
        record.error,
        record.lacks,
    )


def volume_values(record: VolumeRecord) -> tuple[Any, ...]:
    return (
        record.token,
        record.disk_id,
        record.operation_id,
        record.status,
        record.zone,
        record.size_gb,
        record.made_at,
        record.from_snapshot,
        record.volume_id,
        record.retired_by,
        record.saved_in,
    )


def disk_from_row(row: asyncpg.Record) -> DiskState:
    return from_row(
        DiskState,
        row,
        name=row["disk_name"],
        volume_id=row["ebs_volume_id"],
        contents=row["latest_snapshot_content_s3"],
    )


def operation_from_row(row: asyncpg.Record) -> Operation:
    return from_row(
        Operation,
        row,
        kind=OperationKind(row["kind"]),
        state=OperationState(row["state"]),
        blocks=frozenset(row["blocks"]),
        rejections=row["refusals"],
    )


def snapshot_from_row(row: asyncpg.Record) -> SnapshotRecord:
    return from_row(SnapshotRecord, row, why=SnapshotReason(row["why"]), status=SnapshotStatus(row["status"]))


def volume_from_row(row: asyncpg.Record) -> VolumeRecord:
    return from_row(VolumeRecord, row, status=VolumeStatus(row["status"]))
