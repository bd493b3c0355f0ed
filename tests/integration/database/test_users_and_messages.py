"""Keys, dead letters and notifications on a real PostgreSQL."""

import asyncio
from datetime import timedelta

import pytest

from gpudev.adapters.postgres.database.cleanup import delete_old_rows
from gpudev.adapters.postgres.database.listener import Listener
from gpudev.adapters.postgres.database.migrator import ensure_queue_notifications
from gpudev.adapters.postgres.queue.message_queue import QUEUE_INSERT_CHANNEL
from gpudev.adapters.postgres.stores import Stores
from gpudev.domain.access.users import Role
from gpudev.domain.errors import Conflict, NotFound, Unauthenticated
from gpudev.settings import DatabaseSettings
from support.clock import ManualClock


async def test_a_key_is_stored_only_as_a_hash_and_speaks_for_its_user(stores: Stores) -> None:
    user = await stores.users.add_user("ada", Role.USER)
    issued = await stores.users.issue_key(user.user_id, timedelta(hours=2), "test")
    found = await stores.users.find_key(issued.secret)
    assert found is not None
    assert found.user == user
    async with stores.pool.acquire() as connection:
        dump = str(await connection.fetch("SELECT k::text FROM api_keys k"))
    assert issued.secret not in dump


async def test_a_key_past_its_end_or_of_a_disabled_user_is_no_key(stores: Stores) -> None:
    user = await stores.users.add_user("ada", Role.USER)
    over = await stores.users.issue_key(user.user_id, timedelta(seconds=-1), "test")
    good = await stores.users.issue_key(user.user_id, None, "test")
    assert await stores.users.find_key(over.secret) is None
    assert await stores.users.find_key(good.secret) is not None
    async with stores.pool.acquire() as connection:
        await connection.execute("UPDATE api_users SET is_active = false")
    assert await stores.users.find_key(good.secret) is None


async def test_rotating_revokes_the_old_key_at_once(stores: Stores) -> None:
    user = await stores.users.add_user("ada", Role.USER)
    old = await stores.users.issue_key(user.user_id, None, "test")
    key = await stores.users.find_key(old.secret)
    assert key is not None
    new = await stores.users.rotate_key(key.key_id, None)
    assert await stores.users.find_key(old.secret) is None
    assert await stores.users.find_key(new.secret) is not None
    with pytest.raises(Unauthenticated):
        await stores.users.rotate_key(key.key_id, None)


async def test_a_name_is_given_once(stores: Stores) -> None:
    await stores.users.add_user("ada", Role.USER)
    with pytest.raises(Conflict, match="ada"):
        await stores.users.add_user("ada", Role.USER)


async def test_a_dead_letter_can_be_sent_back_or_dropped(stores: Stores, clock: ManualClock) -> None:
    async with stores.pool.acquire() as connection:
        await connection.execute(
            "SELECT pgmq.send('gpu_reservations', $1::jsonb)", {"reservation_id": "x", "failures": 2}
        )
    [message] = await stores.message_queue.read("gpu_reservations", timedelta(seconds=30), 1)
    assert await stores.message_queue.fail("gpu_reservations", message, "broken", now=clock.now()) is True
    [letter] = await stores.message_queue.peek_messages("gpu_reservations_dlq")
    await stores.message_queue.retry_dead_letter("gpu_reservations", letter.msg_id)
    [again] = await stores.message_queue.peek_messages("gpu_reservations")
    assert again.body == {"reservation_id": "x", "cause": "retried"}
    await stores.message_queue.drop_message("gpu_reservations", again.msg_id)
    with pytest.raises(NotFound):
        await stores.message_queue.drop_message("gpu_reservations", again.msg_id)
    with pytest.raises(NotFound, match="no queue"):
        await stores.message_queue.peek_messages("elsewhere")


async def test_notifications_come_back_after_a_crash_emptied_pgmqs_switch(
    stores: Stores, database: DatabaseSettings
) -> None:
    async with stores.pool.acquire() as connection:
        await connection.execute("TRUNCATE pgmq.notify_insert_throttle")  # what recovery does to an unlogged table
    heard = asyncio.Queue[str | None]()
    listener = Listener(database, QUEUE_INSERT_CHANNEL, heard.put_nowait, on_connect=ensure_queue_notifications)
    listener.start()
    try:
        assert await asyncio.wait_for(heard.get(), 30) is None
        async with stores.pool.acquire() as connection:
            await connection.execute("SELECT pgmq.send('gpu_reservations', '{}'::jsonb)")
        assert await asyncio.wait_for(heard.get(), 30) is not None
    finally:
        await listener.close()


async def test_a_message_that_is_no_object_can_be_looked_at_and_given_up_on(stores: Stores, clock: ManualClock) -> None:
    async with stores.pool.acquire() as connection:
        await connection.execute("SELECT pgmq.send('gpu_reservations', '[1, 2]'::jsonb)")
    [message] = await stores.message_queue.read("gpu_reservations", timedelta(seconds=30), 1)
    assert await stores.message_queue.fail("gpu_reservations", message, "names nothing", now=clock.now()) is False
    [again] = await stores.message_queue.peek_messages("gpu_reservations")
    assert again.body["failures"] == 1


async def test_what_is_over_is_forgotten_and_nothing_else(stores: Stores) -> None:
    user = await stores.users.add_user("ada", Role.USER)
    kept = await stores.users.issue_key(user.user_id, None, "kept")
    await stores.users.issue_key(user.user_id, timedelta(days=-31), "over for long")
    await stores.users.issue_key(user.user_id, timedelta(days=-1), "over since yesterday")
    async with stores.pool.acquire() as connection:
        await connection.execute(
            """
            INSERT INTO idempotency_keys VALUES ($1, 'old', '', gen_random_uuid(), now() - interval '8 days'),
                                                ($1, 'new', '', gen_random_uuid(), now())
            """,
            user.user_id,
        )
    assert await delete_old_rows(stores.pool) == (1, 1)
    assert await delete_old_rows(stores.pool) == (0, 0)
    assert await stores.users.find_key(kept.secret) is not None
