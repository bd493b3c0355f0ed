"""A benchmark's database, and its client: writes row and message in one transaction, as the API does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

from gpudev.adapters.postgres.database.migrator import migrate
from gpudev.adapters.postgres.stores import Stores, open_stores
from gpudev.domain.access.users import Role
from gpudev.domain.ids import ReservationId, UserId, new_reservation_id
from gpudev.domain.reservations.reservation import ReservationDraft
from gpudev.embedded.postgres import EmbeddedPostgres
from gpudev.ports.clock import SystemClock
from gpudev.settings import Settings

BENCH_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGtRZ0cQ4sHO3yCqJwq3xq2yXo3Qb1gG3g2T9nH3lQkA bench"
_AT_ONCE = 8


class Submitter:
    def __init__(self, stores: Stores, user_id: UserId) -> None:
        self._stores = stores
        self._user_id = user_id
        self._clock = SystemClock()

    async def submit(self) -> ReservationId:
        draft = ReservationDraft(
            reservation_id=new_reservation_id(),
            user_id=self._user_id,
            username="bench",
            gpu_type="h100",
            gpu_count=1,
            node_count=1,
            duration=timedelta(hours=8),
            ssh_public_keys=(BENCH_KEY,),
            disk_name="none",
        )
        await self._stores.reservations.submit(draft, idempotency_key=None, fingerprint="", now=self._clock.now())
        return draft.reservation_id

    async def submit_many(self, count: int) -> list[ReservationId]:
        slots = asyncio.Semaphore(_AT_ONCE)

        async def one() -> ReservationId:
            async with slots:
                return await self.submit()

        return list(await asyncio.gather(*(one() for _ in range(count))))


@contextlib.asynccontextmanager
async def prepared_database(folder: Path) -> AsyncIterator[tuple[dict[str, str], Submitter]]:
    """The environment to reach the database, and a user."""
    server = EmbeddedPostgres(folder / "postgres")
    await asyncio.to_thread(server.initialise)
    await asyncio.to_thread(server.start)
    try:
        database = server.database_settings()
        await migrate(database)
        stores = open_stores(Settings(database=database))
        user = await stores.users.add_user("bench", Role.USER)
        environment = {
            "POSTGRES_HOST": database.host,
            "POSTGRES_PORT": str(database.port),
            "POSTGRES_USER": database.user,
            "POSTGRES_DB": database.database,
            "GPU_DEV_HOME": str(folder / "state"),
        }
        yield environment, Submitter(stores, user.user_id)
        await stores.close()
    finally:
        await asyncio.to_thread(server.stop)
