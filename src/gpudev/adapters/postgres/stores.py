"""All stores over one pool."""

from dataclasses import dataclass

from gpudev.adapters.postgres.access.audit_log import PostgresAuditLog
from gpudev.adapters.postgres.access.login import (
    PostgresAccounts,
    PostgresInvitations,
    PostgresNonces,
    PostgresUsedTokens,
)
from gpudev.adapters.postgres.access.users import PostgresUserAdministration, PostgresUsers
from gpudev.adapters.postgres.cluster.gpu_types import PostgresAvailability, PostgresCatalogue
from gpudev.adapters.postgres.cluster.nodes import PostgresCordons, PostgresNodes
from gpudev.adapters.postgres.database.leases import PostgresLeases, PostgresReconcileLocks
from gpudev.adapters.postgres.database.pool import Pool
from gpudev.adapters.postgres.disks.attachments import PostgresAttachments, PostgresDiskContents
from gpudev.adapters.postgres.disks.operations import PostgresDiskOperations
from gpudev.adapters.postgres.disks.records import PostgresDiskRecords, PostgresUnlinkedDisks
from gpudev.adapters.postgres.disks.views import PostgresDiskLocations, PostgresDiskViews
from gpudev.adapters.postgres.queue.estimates import PostgresEstimates, PostgresPlanningRecords, PostgresQueuePlans
from gpudev.adapters.postgres.queue.message_queue import PostgresMessageQueue
from gpudev.adapters.postgres.reservations.notifications import PostgresNotifications
from gpudev.adapters.postgres.reservations.personalization import PostgresPersonalizations
from gpudev.adapters.postgres.reservations.reservation_rows import fail_reservation
from gpudev.adapters.postgres.reservations.reservation_store import PostgresMoves, PostgresReservations, UnreleasedCache
from gpudev.adapters.postgres.sessions.addons import PostgresAddons
from gpudev.adapters.postgres.sessions.proxy_tokens import PostgresProxyTokens
from gpudev.settings import Settings


@dataclass(frozen=True, slots=True)
class Stores:
    pool: Pool
    reservations: PostgresReservations
    nodes: PostgresNodes
    cordons: PostgresCordons
    catalogue: PostgresCatalogue
    users: PostgresUsers
    accounts: PostgresAccounts
    nonces: PostgresNonces
    invitations: PostgresInvitations
    used_tokens: PostgresUsedTokens
    leases: PostgresLeases
    message_queue: PostgresMessageQueue
    unreleased: UnreleasedCache
    plans: PostgresQueuePlans
    estimates: PostgresEstimates
    availability: PostgresAvailability
    disk_records: PostgresDiskRecords
    disk_operations: PostgresDiskOperations
    disk_views: PostgresDiskViews
    attachments: PostgresAttachments
    disk_locations: PostgresDiskLocations
    unlinked_disks: PostgresUnlinkedDisks
    disk_contents: PostgresDiskContents
    planning_records: PostgresPlanningRecords
    reconcile_locks: PostgresReconcileLocks
    proxy_tokens: PostgresProxyTokens
    addons: PostgresAddons
    administration: PostgresUserAdministration
    audit_log: PostgresAuditLog
    personalizations: PostgresPersonalizations
    moves: PostgresMoves
    notifications: PostgresNotifications

    async def close(self) -> None:
        await self.leases.close()
        await self.pool.close()


def open_stores(settings: Settings, *, max_connections: int = 8, timeout_seconds: float = 30.0) -> Stores:
    """The pool connects at its first use. After `timeout_seconds` without an answer a call raises Unavailable."""
    pool = Pool(settings.database, max_size=max_connections, timeout_seconds=timeout_seconds)
    return Stores(
        pool=pool,
        reservations=PostgresReservations(pool),
        nodes=PostgresNodes(pool),
        cordons=PostgresCordons(pool),
        catalogue=PostgresCatalogue(pool),
        users=PostgresUsers(pool),
        accounts=PostgresAccounts(pool),
        nonces=PostgresNonces(pool),
        invitations=PostgresInvitations(pool),
        used_tokens=PostgresUsedTokens(pool),
        leases=PostgresLeases(pool),
        message_queue=PostgresMessageQueue(pool, settings.timing.retry_backoff, on_dead_letter=fail_reservation),
        unreleased=UnreleasedCache(pool),
        plans=PostgresQueuePlans(pool),
        estimates=PostgresEstimates(pool),
        availability=PostgresAvailability(pool),
        disk_records=PostgresDiskRecords(pool),
        disk_operations=PostgresDiskOperations(pool),
        disk_views=PostgresDiskViews(pool),
        attachments=PostgresAttachments(pool),
        disk_locations=PostgresDiskLocations(pool),
        unlinked_disks=PostgresUnlinkedDisks(pool),
        disk_contents=PostgresDiskContents(pool),
        planning_records=PostgresPlanningRecords(pool),
        reconcile_locks=PostgresReconcileLocks(pool),
        proxy_tokens=PostgresProxyTokens(pool),
        addons=PostgresAddons(pool),
        administration=PostgresUserAdministration(pool),
        audit_log=PostgresAuditLog(pool),
        personalizations=PostgresPersonalizations(pool),
        moves=PostgresMoves(pool),
        notifications=PostgresNotifications(pool),
    )
