from collections.abc import AsyncIterator

import pytest

from disks.postgres_world import PostgresStoreWorld
from gpudev.adapters.postgres.stores import Stores
from gpudev.domain.access.users import Role


@pytest.fixture
async def postgres_world(stores: Stores) -> AsyncIterator[PostgresStoreWorld]:
    ada, ben = [(await stores.users.add_user(name, Role.USER)).user_id for name in ("ada", "ben")]
    yield PostgresStoreWorld(stores, ada, ben)
