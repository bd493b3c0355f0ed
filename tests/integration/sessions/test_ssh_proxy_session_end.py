"""ssh through HTTPS, at the server: for how long."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import httpx2
import pytest

from gpudev.domain.errors import Unavailable
from gpudev.domain.sessions.grants import Grant, GrantState
from gpudev.settings import ProxySettings
from gpudev.workflows.sessions.ssh_tokens import GRANT_CHECK_EVERY
from support.api.harness import Api
from support.api.ssh_proxy import PROXY_SETTINGS, Proxy, closed, greeting, proxy_of
from support.polling import eventually_async


async def test_a_session_ends_with_its_reservation(proxy: Proxy, ada: httpx2.AsyncClient) -> None:
    await proxy.reserve(ada)
    async with proxy.open(await proxy.token(ada)) as session:
        await greeting(session)
        assert (await ada.post(f"/v1/jobs/{proxy.job['job_id']}/cancel")).status_code == 200
        code, reason = await closed(session)
        assert code == 4001
        assert reason == f"reservation {proxy.job['job_id'][:8]} is cancelled"
    await eventually_async(lambda: len(proxy.sessions) == 0)
    # The decision falls at the first look after it, and the usual look is never further away than this.
    assert timedelta(milliseconds=400) >= GRANT_CHECK_EVERY


async def test_a_session_ends_with_the_key_that_opened_it(proxy: Proxy, ada: httpx2.AsyncClient) -> None:
    await proxy.reserve(ada)
    other = await proxy.api.as_user("ada")
    async with proxy.open(await proxy.token(ada)) as session, proxy.open(await proxy.token(other)) as stays:
        await greeting(session)
        await greeting(stays)
        assert (await ada.delete("/v1/keys/current")).status_code == 204
        assert (await closed(session))[0] == 4003
        await stays.send(b"with another key")
        assert await asyncio.wait_for(stays.recv(), 10) == b"with another key"


async def test_a_session_ends_when_its_user_is_disabled(proxy: Proxy, ada: httpx2.AsyncClient) -> None:
    await proxy.reserve(ada)
    async with proxy.open(await proxy.token(ada)) as session:
        await greeting(session)
        async with proxy.api.world.stores.pool.acquire() as connection:
            await connection.execute("UPDATE api_users SET is_active = false WHERE username = 'ada'")
        assert await closed(session) == (4003, "your account was disabled")


async def test_a_key_that_comes_to_its_end_cuts_nobody_off(proxy: Proxy, ada: httpx2.AsyncClient) -> None:
    await proxy.reserve(ada)
    async with proxy.open(await proxy.token(ada)) as session:
        await greeting(session)
        async with proxy.api.world.stores.pool.acquire() as connection:
            await connection.execute("UPDATE api_keys SET expires_at = now() - interval '1 second'")
        await proxy.sessions.end_expired()
        await session.send(b"on")
        assert await asyncio.wait_for(session.recv(), 10) == b"on"


async def test_while_the_database_is_away_nothing_is_known_and_nobody_is_cut_off(
    proxy: Proxy, ada: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await proxy.reserve(ada)
    async with proxy.open(await proxy.token(ada)) as session:
        await greeting(session)

        async def away(_grants: Sequence[Grant]) -> dict[Grant, GrantState]:
            raise Unavailable("the database does not answer")

        monkeypatch.setattr(proxy.api.services.proxy_tokens, "load_grant_states", away)
        await proxy.sessions.end_expired()
        await session.send(b"on")
        assert await asyncio.wait_for(session.recv(), 10) == b"on"
        monkeypatch.undo()
        await ada.post(f"/v1/jobs/{proxy.job['job_id']}/cancel")
        assert (await closed(session))[0] == 4001


async def test_there_is_a_ping_before_anything_on_the_way_gives_up(api: Api, ada: httpx2.AsyncClient) -> None:
    """And a client that answers none is given up itself."""
    settings = replace(PROXY_SETTINGS, ping_every=timedelta(0))
    async with proxy_of(api, settings, silent_for=timedelta(seconds=0.5)) as proxy:
        await proxy.reserve(ada)
        token = await proxy.token(ada)
        async with proxy.open(token) as answering:
            await greeting(answering)
            reader, writer = await asyncio.open_connection(*proxy.address.split(":"))
            writer.write(
                f"GET /v1/jobs/{proxy.job['job_id']}/ssh HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
                "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
                f"Authorization: Bearer {token}\r\n\r\n".encode()
            )
            said = await asyncio.wait_for(reader.read(), 20)
            writer.close()
            assert said.startswith(b"HTTP/1.1 101 ")
            assert b"\x89\x00" in said, "pings"
            assert b"the client did not answer" in said
            await answering.send(b"here")
            assert await asyncio.wait_for(answering.recv(), 10) == b"here"
    assert ProxySettings().ping_every < timedelta(seconds=30)


async def test_a_server_that_stops_says_so(api: Api, ada: httpx2.AsyncClient) -> None:
    async with proxy_of(api, PROXY_SETTINGS) as proxy:
        await proxy.reserve(ada)
        async with proxy.open(await proxy.token(ada)) as session:
            await greeting(session)
            ending = asyncio.create_task(proxy.sessions.close())
            assert (await closed(session))[0] == 1001
            await ending
