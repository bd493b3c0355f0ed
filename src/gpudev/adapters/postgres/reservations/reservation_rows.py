"""Rows to values and back: the one place that knows both the columns and the domain."""

from datetime import timedelta

import asyncpg

from gpudev.adapters.postgres.database.row_values import from_row
from gpudev.domain.cluster import NodeShare
from gpudev.domain.queue import Estimate, TimeInterval
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
