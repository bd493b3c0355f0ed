"""ssh through HTTPS, at the server: who gets through, to where, and how many at once."""

import asyncio
from dataclasses import replace

import httpx2

from gpudev.settings import load_settings
from support.api.harness import Api, refused, submit
from support.api.ssh_proxy import PROXY_SETTINGS, Proxy, greeting, proxy_of
from support.polling import eventually_async


async def test_another_users_reservation_does_not_exist(
    proxy: Proxy, ada: httpx2.AsyncClient, bob: httpx2.AsyncClient
) -> None:
    job = await proxy.reserve(ada)
    refused(await bob.post(f"/v1/jobs/{job['job_id']}/proxy-token"), 404, "not_found")
    refused(await bob.get(f"/v1/jobs/{job['job_id']}/ssh"), 404, "not_found")
    theirs = proxy.job
    await proxy.reserve(bob)
    bobs = await proxy.token(bob)
    proxy.job = theirs
    await proxy.is_refused(bobs, 401)


async def test_a_token_is_for_one_reservation_and_not_for_another_of_the_same_user(
    proxy: Proxy, ada: httpx2.AsyncClient
) -> None:
    await proxy.reserve(ada)
    token = await proxy.token(ada)
    await proxy.reserve(ada)
    await proxy.is_refused(token, 401)


async def test_only_what_is_active_has_a_way(proxy: Proxy, ada: httpx2.AsyncClient) -> None:
    job = await submit(ada, gpu_count=8)
    refused(await ada.post(f"/v1/jobs/{job['job_id']}/proxy-token"), 409, "conflict")
    await proxy.reserve(ada)
    token = await proxy.token(ada)
    await ada.post(f"/v1/jobs/{proxy.job['job_id']}/cancel")
    assert "is cancelled" in await proxy.is_refused(token, 409)


async def test_without_a_websocket_it_says_what_it_is(proxy: Proxy, ada: httpx2.AsyncClient) -> None:
    await proxy.reserve(ada)
    answer = await ada.get(f"/v1/jobs/{proxy.job['job_id']}/ssh")
    refused(answer, 426, "upgrade_required")
    assert answer.headers["upgrade"] == "websocket"


async def test_a_token_without_a_websocket_tells_that_one_got_lost_on_the_way(
    proxy: Proxy, ada: httpx2.AsyncClient
) -> None:
    """As a reverse proxy passes it on that was not told about WebSockets: the user's key and token are right."""
    await proxy.reserve(ada)
    headers = {"Authorization": f"Bearer {await proxy.token(ada)}"}
    answer = await ada.get(f"/v1/jobs/{proxy.job['job_id']}/ssh", headers=headers)
    refused(answer, 401, "unauthenticated")
    assert "does not forward WebSockets" in answer.json()["detail"]


async def test_what_is_no_token_opens_nothing(proxy: Proxy, ada: httpx2.AsyncClient) -> None:
    await proxy.reserve(ada)
    token = await proxy.token(ada)
    forged = token[:-1] + ("A" if token[-1] != "A" else "B")
    key = ada.headers["Authorization"].split()[1]
    for wrong in (forged, key, "gpudevt_" + "A" * 43, "x", "x" * 4000, "gpudevt_' OR 1=1 --"):
        await proxy.is_refused(wrong, 401)


async def test_a_token_opens_sessions_for_a_minute(proxy: Proxy, ada: httpx2.AsyncClient) -> None:
    await proxy.reserve(ada)
    token = await proxy.token(ada)
    proxy.api.world.clock.move(seconds=59)
    async with proxy.open(token) as session:
        await greeting(session)
        proxy.api.world.clock.move(seconds=1)
        await session.send(b"still here")
        assert await asyncio.wait_for(session.recv(), 10) == b"still here"
    proxy.came = 0
    await proxy.is_refused(token, 401)
    # The next one that is made takes the ended one away.
    await proxy.token(ada)
    async with proxy.api.world.stores.pool.acquire() as connection:
        assert await connection.fetchval("SELECT count(*) FROM proxy_tokens") == 1


async def test_no_web_page_gets_in_and_no_token_stands_in_an_address(proxy: Proxy, ada: httpx2.AsyncClient) -> None:
    await proxy.reserve(ada)
    token = await proxy.token(ada)
    await proxy.is_refused(token, 403, origin="https://evil.example")
    await proxy.is_refused(token, 403, origin=f"http://{proxy.address}")
    await proxy.is_refused("x" * 20, 422, path=f"?token={token}")
    await proxy.is_refused(token, 422, path="?host=169.254.169.254&port=80")
    await proxy.is_refused(token, 401, headers=[("Authorization", f"Bearer {token}")])
    await proxy.is_refused(token, 404, path="/../../health")


async def test_no_record_leads_to_the_control_plane(api: Api, ada: httpx2.AsyncClient) -> None:
    """Not to its ports on one machine, and to none of its loopback elsewhere; nor to where clouds tell secrets."""
    async with proxy_of(api, PROXY_SETTINGS) as proxy:
        await proxy.reserve(ada, "169.254.169.254", 80)
        assert "recorded address" in await proxy.is_refused(await proxy.token(ada), 502)
        await proxy.reserve(ada, port=api.services.settings.api_port)
        await proxy.is_refused(await proxy.token(ada), 502)
        await proxy.reserve(ada, "localhost", PROXY_SETTINGS.port)
        await proxy.is_refused(await proxy.token(ada), 502)
    api.services = replace(api.services, settings=replace(api.services.settings, cluster="kubernetes"))
    async with proxy_of(api, PROXY_SETTINGS) as proxy:
        await proxy.reserve(ada)
        await proxy.is_refused(await proxy.token(ada), 502)


def test_the_control_plane_is_wherever_one_of_its_parts_listens() -> None:
    own = load_settings(
        {
            "POSTGRES_HOST": "10.0.0.2", "POSTGRES_PORT": "5433", "GPU_DEV_API_PORT": "8001",
            "GPU_DEV_PROXY_PORT": "8002", "GPU_DEV_LISTEN": "192.0.2.7:8003", "GPU_DEV_METRICS_ADDRESS": "0.0.0.0:8004",
        }
    ).own_addresses  # fmt: skip
    assert own >= {
        ("10.0.0.2", 5433), ("127.0.0.1", 8001), ("127.0.0.1", 8002), ("192.0.2.7", 8003), ("0.0.0.0", 8004),
    }  # fmt: skip
    in_a_folder = load_settings({"POSTGRES_HOST": "/run/postgresql"}).own_addresses
    assert all(port != 5432 for _, port in in_a_folder), "that port is everybody's there"


async def test_a_dev_server_that_does_not_answer_is_told(proxy: Proxy, ada: httpx2.AsyncClient) -> None:
    await proxy.reserve(ada)
    proxy.dev_server.close()
    said = await proxy.is_refused(await proxy.token(ada), 503)
    assert "does not answer" in said
    assert "127.0.0.1" not in said
    await eventually_async(lambda: len(proxy.sessions) == 0)


async def test_nobody_takes_all_sessions(api: Api, ada: httpx2.AsyncClient, bob: httpx2.AsyncClient) -> None:
    async with proxy_of(api, replace(PROXY_SETTINGS, most_per_user=1)) as proxy:
        await proxy.reserve(ada)
        token = await proxy.token(ada)
        async with proxy.open(token) as session:
            await greeting(session)
            proxy.came = 0
            assert "sessions" in await proxy.is_refused(token, 429)
            adas = proxy.job
            await proxy.reserve(bob)
            async with proxy.open(await proxy.token(bob)) as other:
                await greeting(other)
            proxy.job = adas
        await eventually_async(lambda: len(proxy.sessions) == 0)
        async with proxy.open(token) as session:
            await greeting(session)


async def test_all_sessions_together_are_bounded_also_while_they_open(api: Api, ada: httpx2.AsyncClient) -> None:
    async with proxy_of(api, replace(PROXY_SETTINGS, most=2)) as proxy:
        await proxy.reserve(ada)
        token = await proxy.token(ada)
        async with proxy.open(token) as first, proxy.open(token) as second:
            await greeting(first)
            await greeting(second)
            proxy.came = 0
            assert "maximum number of sessions" in await proxy.is_refused(token, 503)
