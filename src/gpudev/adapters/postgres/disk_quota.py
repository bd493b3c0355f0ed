"""Whether a submit may make the disk that it names. Whoever changes a user's disks waits until the submit is over."""

from gpudev.adapters.postgres.pool import Connection
from gpudev.domain.disk_operations import DiskSettings
from gpudev.domain.ids import UserId
from gpudev.domain.reservation import Draft
from gpudev.planning.disk_quota import DiskHoldings, check_quota

_TAKE_TURNS = "SELECT pg_advisory_xact_lock(hashtext('gpu-dev disks'), $1)"
_HOLDINGS = """
    SELECT count(*) AS count, coalesce(sum(size_gb), 0)::bigint AS size_gb,
           coalesce(bool_or(disk_name = $2), false) AS has_it
    FROM disks WHERE user_id = $1 AND NOT is_deleted
"""


async def take_turns(connection: Connection, user_id: UserId) -> None:
    """With everybody who would change what disks this user has, until the transaction ends."""
    await connection.execute(_TAKE_TURNS, user_id)


async def check_quota_of_new_disk(connection: Connection, draft: Draft, settings: DiskSettings) -> None:
    """Raises LimitReached. A disk that is there already passes."""
    await take_turns(connection, draft.user_id)
    row = await connection.fetchrow(_HOLDINGS, draft.user_id, draft.disk_name)
    assert row is not None  # of every aggregate
    if not row["has_it"]:
        has = DiskHoldings(row["count"], row["size_gb"])
        check_quota(has, settings, more=1, more_gb=settings.default_size_gb)
