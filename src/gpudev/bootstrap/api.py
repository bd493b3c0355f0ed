"""The API's parts."""

import contextlib
from collections.abc import AsyncIterator

from gpudev.adapters.github import GitHubKeys
from gpudev.adapters.postgres.listening import ReservationChanges
from gpudev.adapters.postgres.stores import open_stores
from gpudev.api.authentication import KeyIdentity
from gpudev.api.services import Services
from gpudev.bootstrap.running import check_schema
from gpudev.domain.commands import PLANNING_LEASE
from gpudev.ports.clock import SystemClock
from gpudev.settings import Settings


@contextlib.asynccontextmanager
async def open_api_services(settings: Settings) -> AsyncIterator[Services]:
    stores = open_stores(settings, max_connections=10)
    changes = ReservationChanges(settings.database)
    keys = GitHubKeys(settings.github_url)
    changes.start()
    try:
        yield Services(
            reservations=stores.reservations,
            unreleased=stores.unreleased,
            plans=stores.plans,
            estimates=stores.estimates,
            nodes=stores.nodes,
            catalogue=stores.catalogue,
            users=stores.users,
            disks=stores.disk_operations,
            disk_views=stores.disk_views,
            accounts=stores.accounts,
            nonces=stores.nonces,
            identity=KeyIdentity(stores.users),
            keys=keys,
            changes=changes,
            clock=SystemClock(),
            settings=settings,
            ping=lambda: check_schema(stores),
            is_planning=lambda: stores.leases.is_held(PLANNING_LEASE),
        )
    finally:
        await changes.close()
        await keys.close()
        await stores.close()
