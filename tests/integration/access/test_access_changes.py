"""Hearing that somebody's access changed, and knowing whether one still hears."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from gpudev.adapters.postgres.database.listener import AccessLivenessProbe, PostgresAccessChanges
from gpudev.adapters.postgres.stores import Stores
from gpudev.domain.access.users import Role
from gpudev.ports.access import AccessChange
from gpudev.settings import DatabaseSettings
from support.polling import eventually_async


class Heard:
    def __init__(self, changes: PostgresAccessChanges) -> None:
        self.changes = changes
        self.all: list[AccessChange] = []
        changes.attach(self.all.append)


@pytest.fixture
async def heard(database: DatabaseSettings) -> AsyncIterator[Heard]:
    changes = PostgresAccessChanges(database)
    heard = Heard(changes)
    changes.start()
    await eventually_async(changes.is_fresh)
    assert heard.all == [AccessChange()], "whoever begins to listen knows nothing of before"
    heard.all.clear()
    yield heard
    await changes.close()


async def test_what_takes_something_away_is_heard_and_what_does_not_is_not(heard: Heard, stores: Stores) -> None:
    user = await stores.users.add_user("ada", Role.USER)
    issued = await stores.users.issue_key(user.user_id, None, "test")
    await stores.users.find_key(issued.secret)  # notes that it was used
    await stores.users.set_weight("ada", 2.0)
    key_id = (await stores.administration.list_keys("ada"))[0].key_id
    await stores.administration.set_role("ada", Role.OPERATOR)
    await stores.administration.revoke_key(key_id)
    await stores.administration.revoke_key(key_id)
    await stores.administration.set_active("ada", False)
    wanted = [AccessChange(user_id=user.user_id), AccessChange(key_id=key_id), AccessChange(user_id=user.user_id)]
    await eventually_async(lambda: len(heard.all) >= 3)
    assert heard.all == wanted


async def test_rotating_is_heard(heard: Heard, stores: Stores) -> None:
    user = await stores.users.add_user("ada", Role.USER)
    await stores.users.issue_key(user.user_id, None, "test")
    key_id = (await stores.administration.list_keys("ada"))[0].key_id
    await stores.users.rotate_key(key_id, None)
    await eventually_async(lambda: heard.all == [AccessChange(key_id=key_id)])


async def test_a_connection_that_was_cut_is_made_anew_and_everything_is_forgotten(heard: Heard, stores: Stores) -> None:
    async with stores.pool.acquire() as connection:
        cut = await connection.fetchval(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    assert cut >= 1
    await eventually_async(lambda: AccessChange() in heard.all)
    await eventually_async(heard.changes.is_fresh)


async def test_without_a_database_nothing_counts_as_heard() -> None:
    changes = PostgresAccessChanges(DatabaseSettings(host="/nonexistent"))
    changes.start()
    await asyncio.sleep(0.05)  # for several attempts to connect
    assert not changes.is_fresh()
    await changes.close()


def test_an_answer_counts_from_when_it_was_asked_for() -> None:
    pulse = AccessLivenessProbe()
    assert not pulse.is_fresh()
    pulse.record_answer(time.monotonic() - 5)
    assert not pulse.is_fresh()
    pulse.record_answer(time.monotonic())
    assert pulse.is_fresh()


def test_a_connection_nobody_asks_about_is_left_alone() -> None:
    pulse = AccessLivenessProbe()
    assert pulse.is_due()
    pulse.record_answer(time.monotonic())
    assert not pulse.is_due()
    pulse.is_fresh()
    assert pulse.is_due()
    pulse.record_answer(time.monotonic() - 11)
    assert pulse.is_due(), "now and then all the same"
