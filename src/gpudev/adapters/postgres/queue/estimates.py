"""Estimates and their outcomes, usage samples, published plans and planning records, on PostgreSQL.

Forecasts learn from the outcomes of estimates, and operators' reports use them.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import orjson

from gpudev.adapters.postgres.database.leases import check_epoch
from gpudev.adapters.postgres.database.pool import Connection, Pool
from gpudev.domain.cluster import ZoneConstraint
from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import (
    PLANNING_LEASE,
    DelayCause,
    Estimate,
    EstimateOutcome,
    EstimateRecord,
    QueuePlan,
    StartQuote,
    TimeInterval,
    UsageSample,
)
from gpudev.ports.leases import Lease
from gpudev.ports.queue import PlanningRecords


class PostgresEstimates:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def list_usage_samples(self, per_type: int) -> list[UsageSample]:
        async with self._pool.acquire() as connection:
            found = await connection.fetch(
                """
                SELECT t.gpu_type, r.used, r.could
                FROM gpu_types t, LATERAL (
                    SELECT reservation_ended - launched_at AS used, expires_at - launched_at AS could, reservation_ended
                    FROM reservations
                    WHERE gpu_type = t.gpu_type AND launched_at IS NOT NULL AND reservation_ended IS NOT NULL
                    ORDER BY reservation_ended DESC LIMIT $1
                ) r
                ORDER BY r.reservation_ended
                """,
                per_type,
            )
        return [UsageSample(row["gpu_type"], row["used"], row["could"]) for row in found]

    async def outcomes(self, per_type: int) -> list[EstimateOutcome]:
        async with self._pool.acquire() as connection:
            found = await connection.fetch(
                """
                SELECT t.gpu_type, o.*
                FROM gpu_types t, LATERAL (
                    SELECT e.*, r.preparing_at FROM reservations r JOIN reservation_estimates e USING (reservation_id)
                    WHERE r.gpu_type = t.gpu_type AND r.preparing_at IS NOT NULL
                    ORDER BY r.preparing_at DESC, e.estimate_id DESC LIMIT $1
                ) o
                ORDER BY o.preparing_at, o.estimate_id
                """,
                per_type,
            )
        return [_outcome_from_row(row) for row in found]

    async def outcomes_since(self, since: datetime) -> list[EstimateOutcome]:
        async with self._pool.acquire() as connection:
            found = await connection.fetch(
                """
                SELECT r.gpu_type, r.preparing_at, e.*
                FROM reservations r JOIN reservation_estimates e USING (reservation_id)
                WHERE r.preparing_at >= $1 OR r.status IN ('pending', 'queued')
                ORDER BY r.preparing_at NULLS LAST, e.estimate_id
                """,
                since,
            )
        return [_outcome_from_row(row) for row in found]


async def write_estimates(connection: Connection, estimates: Sequence[EstimateRecord]) -> None:
    """Record the estimates that people get, to compare them with the starts. In the caller's transaction."""
    if not estimates:
        return
    await connection.executemany(
        """
        INSERT INTO reservation_estimates (reservation_id, made_at, queue_position, latest, expected, earliest,
                                           latest_likely, typical_seconds, is_newcomer, worse_because)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
        """,
        [
            (
                estimate.reservation_id,
                estimate.made_at,
                estimate.position,
                estimate.latest,
                estimate.interval.expected,
                estimate.interval.earliest,
                estimate.interval.latest_likely,
                estimate.typical_seconds,
                estimate.is_newcomer,
                estimate.delay_cause,
            )
            for estimate in estimates
        ],
    )


def _outcome_from_row(row: asyncpg.Record) -> EstimateOutcome:
    record = EstimateRecord(
        reservation_id=ReservationId(row["reservation_id"]),
        made_at=row["made_at"],
        position=row["queue_position"],
        latest=row["latest"],
        interval=TimeInterval(row["expected"], row["earliest"], row["latest_likely"]),
        typical_seconds=row["typical_seconds"],
        is_newcomer=row["is_newcomer"],
        delay_cause=None if row["worse_because"] is None else DelayCause(row["worse_because"]),
    )
    return EstimateOutcome(row["gpu_type"], record, row["preparing_at"])


# Published plans: one packed row per GPU type, so that a full queue is one write. Estimates are unpacked one by one, on
# request.

_MICROSECOND = timedelta(microseconds=1)


class PostgresQueuePlans:
    """Caches what it read: a refresh without changes costs one query for newer versions."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._newest = 0
        self._plans: dict[str, QueuePlan] = {}

    async def publish_plans(self, lease: Lease, plans: Sequence[QueuePlan]) -> None:
        packed = [(plan.gpu_type, plan.made_at, pack_plan(plan)) for plan in plans]
        async with self._pool.transaction() as connection:
            await check_epoch(connection, lease)
            await connection.executemany(
                """
                INSERT INTO queue_plans (gpu_type, version, made_at, body)
                VALUES ($1, nextval('queue_plan_versions'), $2, $3)
                ON CONFLICT (gpu_type) DO UPDATE
                SET version = EXCLUDED.version, made_at = EXCLUDED.made_at, body = EXCLUDED.body
                """,
                packed,
            )

    async def refresh(self) -> Mapping[str, QueuePlan]:
        async with self._pool.acquire() as connection:
            # Only the planning processor writes, one transaction after the other, so versions appear in order.
            found = await connection.fetch("SELECT * FROM queue_plans WHERE version > $1", self._newest)
        for row in found:
            self._plans[row["gpu_type"]] = unpack_plan(row["gpu_type"], row["made_at"], row["body"])
            self._newest = max(self._newest, row["version"])
        return self._plans


def pack_plan(plan: QueuePlan) -> bytes:
    names = sorted({name for estimate in plan.estimates.values() for name in estimate.nodes})
    index = {name: at for at, name in enumerate(names)}
    body = {
        "seq": plan.planned_seq,
        "habits": plan.usage_ratios,
        "factors": plan.correction_factors,
        "names": names,
        "ids": [reservation_id.hex for reservation_id in plan.estimates],
        "waits": [
            [
                estimate.position,
                _microseconds(estimate.latest, plan.made_at),
                _pack_interval(estimate.interval, plan.made_at),
                estimate.reason,
                [index[name] for name in estimate.nodes],
            ]
            for estimate in plan.estimates.values()
        ],
        "offers": [
            [
                quote.units,
                quote.node_count,
                None if quote.duration is None else quote.duration // _MICROSECOND,
                _microseconds(quote.latest, plan.made_at),
                _pack_interval(quote.interval, plan.made_at),
            ]
            for quote in plan.quotes
        ],
        "zones": _nodes_by_zone(plan.zones),
        "anchors": [
            [
                reservation_id.hex,
                constraint.disk_name,
                sorted(constraint.zones),
                None if constraint.move_time is None else constraint.move_time // _MICROSECOND,
            ]
            for reservation_id, constraint in plan.zone_constraints.items()
        ],
    }
    return zlib.compress(orjson.dumps(body), 1)


def unpack_plan(gpu_type: str, made_at: datetime, packed: bytes) -> QueuePlan:
    body = orjson.loads(zlib.decompress(packed))
    quotes = tuple(
        StartQuote(
            units,
            node_count,
            None if duration is None else duration * _MICROSECOND,
            made_at + latest * _MICROSECOND,
            _unpack_interval(span, made_at),
        )
        for units, node_count, duration, latest, span in body["offers"]
    )
    ratios, factors = body["habits"], body["factors"]
    return QueuePlan(
        gpu_type,
        made_at,
        body["seq"],
        _PackedEstimates(body, made_at),
        quotes,
        usage_ratios=None if ratios is None else tuple(ratios),
        correction_factors=None if factors is None else tuple((low, middle, high) for low, middle, high in factors),
        # A processor of an older version writes neither.
        zones={name: zone for zone, names in body.get("zones", {}).items() for name in names},
        zone_constraints={
            ReservationId(UUID(reservation_id)): ZoneConstraint(
                disk, frozenset(zones), None if move is None else move * _MICROSECOND
            )
            for reservation_id, disk, zones, move in body.get("anchors", ())
        },
    )


def _nodes_by_zone(zones: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, zone in zones.items():
        found.setdefault(zone, []).append(name)
    return found


class _PackedEstimates(Mapping[ReservationId, Estimate]):
    def __init__(self, body: dict[str, Any], made_at: datetime) -> None:
        self._index = {identifier: at for at, identifier in enumerate(body["ids"])}
        self._waits: list[Any] = body["waits"]
        self._names: list[str] = body["names"]
        self._made_at = made_at

    def __getitem__(self, reservation_id: ReservationId) -> Estimate:
        return self._unpack_estimate(self._index[reservation_id.hex])

    def __contains__(self, reservation_id: object) -> bool:
        return isinstance(reservation_id, UUID) and reservation_id.hex in self._index

    def get(self, reservation_id: ReservationId, default: Any = None) -> Any:
        at = self._index.get(reservation_id.hex)
        return default if at is None else self._unpack_estimate(at)

    def _unpack_estimate(self, at: int) -> Estimate:
        position, latest, span, reason, nodes = self._waits[at]
        return Estimate(
            position,
            None if latest is None else self._made_at + latest * _MICROSECOND,
            _unpack_interval(span, self._made_at),
            reason,
            tuple(self._names[node] for node in nodes),
        )

    def __iter__(self) -> Iterator[ReservationId]:
        return (ReservationId(UUID(identifier)) for identifier in self._index)

    def __len__(self) -> int:
        return len(self._index)


def _microseconds(at: datetime | None, since: datetime) -> int | None:
    """Exact: storing a guaranteed start must not change it."""
    return None if at is None else (at - since) // _MICROSECOND


def _pack_interval(span: TimeInterval | None, since: datetime) -> list[int | None] | None:
    if span is None:
        return None
    return [_microseconds(at, since) for at in (span.expected, span.earliest, span.latest_likely)]


def _unpack_interval(parts: list[int] | None, since: datetime) -> TimeInterval | None:
    return None if parts is None else TimeInterval(*(since + part * _MICROSECOND for part in parts))


# Planning records: which requests the planner examined, and which orphans it found. Examined requests are one small
# write from time to time, however many wait.


_MAX_PAUSE = timedelta(minutes=1)


class PostgresPlanningRecords:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def record_examined(self, lease: Lease, by_type: Mapping[str, Sequence[int]], now: datetime) -> None:
        async with self._pool.transaction() as connection:
            holds_lease = await connection.fetchval(
                """
                UPDATE leases
                SET looked_at = $4,
                    looking_since = CASE WHEN looked_at > $4::timestamptz - $5::interval THEN looking_since ELSE $4 END
                WHERE name = $1 AND holder = $2 AND epoch = $3 RETURNING true
                """,
                lease.name,
                lease.holder,
                lease.epoch,
                now,
                _MAX_PAUSE,
            )
            if holds_lease:
                await connection.executemany(
                    """
                    INSERT INTO queue_looks (gpu_type, looked_at, seqs) VALUES ($1, $2, $3)
                    ON CONFLICT (gpu_type) DO UPDATE SET looked_at = EXCLUDED.looked_at, seqs = EXCLUDED.seqs
                    """,
                    [(gpu_type, now, list(seqs)) for gpu_type, seqs in by_type.items()],
                )

    async def load_orphans(self) -> Mapping[ReservationId, datetime]:
        async with self._pool.acquire() as connection:
            found = await connection.fetch("SELECT reservation_id, first_seen FROM orphans_seen")
        return {ReservationId(row["reservation_id"]): row["first_seen"] for row in found}

    async def save_orphans(self, first_observed: Mapping[ReservationId, datetime]) -> None:
        async with self._pool.transaction() as connection:
            await connection.execute(
                "DELETE FROM orphans_seen WHERE reservation_id <> ALL($1::uuid[])", list(first_observed)
            )
            await connection.executemany(
                "INSERT INTO orphans_seen (reservation_id, first_seen) VALUES ($1, $2) ON CONFLICT DO NOTHING",
                list(first_observed.items()),
            )

    async def load_planning_records(self) -> PlanningRecords:
        async with self._pool.acquire() as connection:
            planner = await connection.fetchrow(
                "SELECT looked_at, looking_since FROM leases WHERE name = $1 AND expires_at > clock_timestamp()",
                PLANNING_LEASE,
            )
            found = await connection.fetch("SELECT gpu_type, looked_at, seqs FROM queue_looks")
        by_type = {row["gpu_type"]: (row["looked_at"], frozenset(row["seqs"])) for row in found}
        if planner is None:
            return PlanningRecords(None, None, by_type)
        return PlanningRecords(planner["looked_at"], planner["looking_since"], by_type)
