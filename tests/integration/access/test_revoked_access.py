"""Taking access away while it is being used, prolonged or given: whichever comes first, it is gone afterwards."""

import asyncio
import itertools
from datetime import timedelta

import asyncpg
import httpx2
import pytest

from gpudev.adapters.postgres.database.pool import connect
from gpudev.adapters.postgres.stores import Stores
from gpudev.api.authentication import Authentication
from gpudev.domain.access.users import ApiKey, Role
from gpudev.domain.errors import Forbidden, RateLimited, Unauthenticated
from gpudev.settings import Settings
from support.api.harness import Api, submit
from support.clock import ManualClock
from support.polling import eventually_async


async def test_who_was_disabled_gets_no_key_that_works_once_they_are_enabled(stores: Stores) -> None:
    """As a login does that was let through a moment before."""
    user = await stores.users.add_user("ada", Role.USER)
    await stores.administration.set_active("ada", False)
    with pytest.raises(Forbidden, match="ada is disabled"):
        await stores.users.issue_key(user.user_id, timedelta(hours=2), "aws login")
    await stores.administration.set_active("ada", True)
    assert await stores.administration.list_keys("ada", ended=True) == []


async def test_a_key_rotated_while_its_user_is_disabled_does_not_come_back(stores: Stores, settings: Settings) -> None:
    user = await stores.users.add_user("ada", Role.USER)
    old = await stores.users.issue_key(user.user_id, None, "test")
    key = await stores.users.find_key(old.secret)
    assert key is not None
    holding = await connect(settings.database)
    try:
        async with holding.transaction():
            await holding.execute("SELECT FROM api_keys WHERE key_id = $1 FOR UPDATE", key.key_id)
            rotating = asyncio.create_task(stores.users.rotate_key(key.key_id, None))
            await _until_waiting(holding, 1)
            disabling = asyncio.create_task(stores.administration.set_active("ada", False))
            await _until_waiting(holding, 2)
        new = await rotating
        await disabling
    finally:
        await holding.close()
    await stores.administration.set_active("ada", True)
    assert await stores.users.find_key(new.secret) is None
    assert await stores.administration.list_keys("ada") == []


async def test_a_key_of_a_disabled_user_is_not_rotated(stores: Stores) -> None:
    """Somebody may have disabled the user alone, by hand."""
    user = await stores.users.add_user("ada", Role.USER)
    old = await stores.users.issue_key(user.user_id, None, "test")
    key = await stores.users.find_key(old.secret)
    assert key is not None
    async with stores.pool.acquire() as connection:
        await connection.execute("UPDATE api_users SET is_active = false")
    with pytest.raises(Unauthenticated):
        await stores.users.rotate_key(key.key_id, None)


@pytest.mark.slow
async def test_who_is_no_operator_any_more_sees_no_more_of_others(api: Api, api_address: str) -> None:
    job = await submit(await api.as_user("ada"))
    headers = {"Authorization": f"Bearer {await api.secret('olga', Role.OPERATOR)}"}
    lines: list[str] = []
    async with (
        asyncio.timeout(60),
        httpx2.AsyncClient(base_url=api_address) as client,
        client.stream("GET", f"/v1/jobs/{job['job_id']}/events", headers=headers, timeout=30) as answer,
    ):
        async for line in answer.aiter_lines():
            lines.append(line)
            if line == "event: job" and lines.count("event: job") == 1:
                changed = await api.world.stores.administration.set_role("olga", Role.USER)
                api.app.state.guard.authentication.forget_user(changed.user_id)
    assert lines.count("event: job") == 1, "it ended, although the reservation goes on"


class _Locked:
    """An identity to whom nobody is known, and who takes a while to find out."""

    def __init__(self) -> None:
        self.asked = 0

    async def authenticate(self, _secret: str) -> ApiKey:
        self.asked += 1
        await asyncio.sleep(0)
        raise Unauthenticated("nobody")


async def test_guessing_many_keys_at_the_same_moment_is_paid_for_afterwards(clock: ManualClock) -> None:
    identity, seconds = _Locked(), 0.0
    authentication = Authentication(identity, clock, monotonic=lambda: seconds)
    numbers = itertools.count()

    async def guess() -> None:
        with pytest.raises((Unauthenticated, RateLimited)):
            await authentication.authenticate(f"Bearer gpudev_{next(numbers):043}", "192.0.2.7")

    for _ in range(60):  # a minute, with a hundred connections
        await asyncio.gather(*(guess() for _ in range(100)))
        seconds += 1
    assert identity.asked <= 60 + 60 + 100


async def test_a_key_is_compared_as_a_whole(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """What finds a key is its hash; what lets it in is a comparison that takes as long for every wrong one."""
    user = await stores.users.add_user("ada", Role.USER)
    secret = (await stores.users.issue_key(user.user_id, None, "test")).secret
    compared: list[tuple[str, str]] = []

    def refuse(one: str, other: str) -> bool:
        compared.append((one, other))
        return False

    assert await stores.users.find_key(secret) is not None
    monkeypatch.setattr("gpudev.adapters.postgres.access.users.secrets.compare_digest", refuse)
    assert await stores.users.find_key(secret) is None, "nothing but the comparison decides"
    ((one, other),) = compared
    assert one == other
    assert secret not in (one, other), "not even the comparison sees the key itself"


async def _until_waiting(connection: asyncpg.Connection, many: int) -> None:
    async def are_waiting() -> bool:
        return await connection.fetchval("SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted") >= many

    await eventually_async(are_waiting)
