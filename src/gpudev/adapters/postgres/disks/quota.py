"""Whether a submit may make the disk that it names. Whoever changes a user's disks waits until the submit is over."""

from dataclasses import replace

from gpudev.adapters.postgres.database.pool import Connection
from gpudev.domain.disks.names import DEFAULT_DISK, NO_DISK
from gpudev.domain.disks.operations import DiskSettings
from gpudev.domain.errors import LimitReached
from gpudev.domain.ids import UserId
from gpudev.domain.reservations.reservation import ReservationDraft
from gpudev.planning.disks.quota import DiskUsage, check_quota

_LOCK_USER_DISKS = "SELECT pg_advisory_xact_lock(hashtext('gpu-dev disks'), $1)"
_HAS_DISK = "SELECT EXISTS (SELECT FROM disks WHERE user_id = $1 AND disk_name = $2 AND NOT is_deleted)"
# What is yet to be made has the usual size, and what is growing has the size it will have.
_HOLDINGS = """
    SELECT count(*) AS count, coalesce(bool_or(d.disk_name = $2), false) AS has_it,
           coalesce(sum(greatest(coalesce(d.size_gb, $3), grows.size_gb)), 0)::bigint AS size_gb
    FROM disks d LEFT JOIN LATERAL (
        SELECT max(o.size_gb) AS size_gb FROM disk_operations o
        WHERE o.disk_id = d.disk_id AND o.kind = 'resize' AND o.finished_at IS NULL
    ) grows ON true
    WHERE d.user_id = $1 AND NOT d.is_deleted
"""


async def lock_user_disks(connection: Connection, user_id: UserId) -> None:
    """With everybody who would change what disks this user has, until the transaction ends."""
    await connection.execute(_LOCK_USER_DISKS, user_id)


async def may_create_disk(connection: Connection, draft: ReservationDraft) -> bool:
    """Whether it has to be asked what room there is."""
    if draft.disk_name is not None:
        return draft.disk_name != NO_DISK
    return not await connection.fetchval(_HAS_DISK, draft.user_id, DEFAULT_DISK)


async def apply_disk_quota(connection: Connection, draft: ReservationDraft, settings: DiskSettings) -> ReservationDraft:
    """A disk that is there already passes. Raises LimitReached where one was named that would be too much; who named
    none gets scratch space instead."""
    await lock_user_disks(connection, draft.user_id)
    name = draft.disk_name or DEFAULT_DISK
    row = await connection.fetchrow(_HOLDINGS, draft.user_id, name, settings.default_size_gb)
    assert row is not None  # of every aggregate
    if row["has_it"]:
        return draft
    try:
        has = DiskUsage(row["count"], row["size_gb"])
        check_quota(has, settings, more=1, more_gb=settings.default_size_gb)
    except LimitReached:
        if draft.disk_name is not None:
            raise
        return replace(draft, disk_name=NO_DISK)
    return draft
