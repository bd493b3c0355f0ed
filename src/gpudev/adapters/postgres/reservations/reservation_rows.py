"""Rows to values and back: the one place that knows both the columns and the domain."""

from datetime import timedelta

import asyncpg

from gpudev.domain.cluster import NodeShare
from gpudev.domain.ids import DiskId, ReservationId, UserId
from gpudev.domain.queue import TimeInterval
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation, ReservationEvent, SshEndpoint

SELECT_RESERVATION = """
    SELECT r.*, u.username,
           (SELECT json_agg(json_build_array(s.rank, s.node, s.units, s.gpu_indices) ORDER BY s.rank)
            FROM reservation_shares s WHERE s.reservation_id = r.reservation_id) AS shares
    FROM reservations r JOIN api_users u USING (user_id)
"""


def reservation_from_row(row: asyncpg.Record) -> Reservation:
    return Reservation(
        reservation_id=ReservationId(row["reservation_id"]),
        seq=row["seq"],
        user_id=UserId(row["user_id"]),
        username=row["username"],
        status=Status(row["status"]),
        version=row["version"],
        gpu_type=row["gpu_type"],
        gpu_count=row["gpu_count"],
        node_count=row["node_count"],
        duration=timedelta(hours=row["duration_hours"]),
        created_at=row["created_at"],
        ssh_public_keys=tuple(row["ssh_public_keys"]),
        github_user=row["github_user"],
        name=row["name"],
        image=row["image"],
        priority=row["priority"],
        disk_id=None if row["disk_id"] is None else DiskId(row["disk_id"]),
        disk_name=row["disk_name"],
        preparing_at=row["preparing_at"],
        prepare_by=row["prepare_by"],
        launched_at=row["launched_at"],
        expires_at=row["expires_at"],
        cancelled_at=row["cancelled_at"],
        reservation_ended=row["reservation_ended"],
        released_at=row["released_at"],
        queue_position=row["queue_position"],
        estimated_start_at=row["estimated_start_at"],
        latest_start_at=row["latest_start_at"],
        expected_start=_expected_start_from_row(row),
        wait_reason=row["wait_reason"],
        last_queue_update=row["last_queue_update"],
        step=row["step"],
        failure_reason=row["failure_reason"],
        warned_minutes=row["warned_minutes"],
        launch_attempts=row["launch_attempts"],
        next_attempt_at=row["next_attempt_at"],
        wait_until=row["wait_until"],
        resent_at=row["resent_at"],
        setup_outcome=row["setup_outcome"],
        has_addons=row["furnished"],
        request_id=row["request_id"],
        connection=connection_from_row(row),
        shares=tuple(
            NodeShare(rank, node, units, tuple(indices)) for rank, node, units, indices in row["shares"] or ()
        ),
    )


def event_from_row(row: asyncpg.Record) -> ReservationEvent:
    return ReservationEvent(
        event_id=row["event_id"],
        reservation_id=ReservationId(row["reservation_id"]),
        at=row["at"],
        kind=row["kind"],
        message=row["message"],
        status=Status(row["status"]),
        version=row["version"],
    )


def _expected_start_from_row(row: asyncpg.Record) -> TimeInterval | None:
    expected = row["expected_start_at"]
    return None if expected is None else TimeInterval(expected, row["expected_earliest_at"], row["expected_latest_at"])


def connection_from_row(row: asyncpg.Record) -> SshEndpoint | None:
    if row["node_port"] is None:
        return None
    return SshEndpoint(row["node_ip"], row["node_port"], row["ssh_user"], row["ssh_host_key"] or "")
