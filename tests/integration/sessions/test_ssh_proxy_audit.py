"""ssh through HTTPS, at the server: what is written down, and how often somebody may try."""

import asyncio
import json
import re
from dataclasses import replace

import httpx2
import pytest
from websockets.exceptions import InvalidStatus

from gpudev.http_edge.rate_limits import Rate, RequestLimits
from gpudev.ports.access import AuditEntry, AuditQuery
from gpudev.settings import RequestGuardSettings
from support.api.harness import Api
from support.api.ssh_proxy import PROXY_SETTINGS, Proxy, closed, greeting, proxy_of
from support.polling import eventually_async


async def written(proxy: Proxy, action: str = "ssh") -> list[AuditEntry]:
    await proxy.api.services.trail.flush()
    return await proxy.api.services.audit_log.find_entries(AuditQuery(action=action))


async def test_a_session_is_in_the_audit_log_when_it_opens_and_when_it_ends(
    proxy: Proxy, ada: httpx2.AsyncClient
) -> None:
    await proxy.reserve(ada)
    async with proxy.open(await proxy.token(ada)) as session:
        await greeting(session)
        (opened,) = await written(proxy)
        assert (opened.action, opened.username, opened.address) == ("ssh session opened", "ada", "127.0.0.1")
        assert (opened.target, opened.outcome) == (proxy.job["job_id"], "ok")
        await session.send(b"four")
        assert await asyncio.wait_for(session.recv(), 10) == b"four"
        await ada.post(f"/v1/jobs/{proxy.job['job_id']}/cancel")
        await closed(session)
    await eventually_async(lambda: len(proxy.sessions) == 0)
    _, ended = await written(proxy)
    assert (ended.action, ended.username, ended.outcome) == ("ssh session ended", "ada", "reservation_ended")
    assert ended.target is not None
    assert re.fullmatch(proxy.job["job_id"] + r" after \d+\.\d s, 4 bytes there, 18 back", ended.target)
    assert ended.request_id == opened.request_id


async def test_whoever_is_turned_away_is_in_the_audit_log(proxy: Proxy, ada: httpx2.AsyncClient) -> None:
    await proxy.reserve(ada)
    token = await proxy.token(ada)
    said = await proxy.is_refused("gpudevt_" + "A" * 43, 401)
    await proxy.is_refused(token, 403, origin="https://evil.example")
    forged, page = await written(proxy)
    assert (forged.action, forged.outcome, forged.status) == ("GET /v1/jobs/{job_id}/ssh", "unauthenticated", 401)
    assert (forged.target, forged.address, forged.username) == (proxy.job["job_id"], "127.0.0.1", None)
    assert forged.request_id == json.loads(said)["request_id"]
    assert (page.outcome, page.status) == ("forbidden", 403)


async def test_an_address_that_tries_many_tokens_has_to_wait(api: Api, ada: httpx2.AsyncClient) -> None:
    """Also with a good one: whoever guesses learns nothing any more. Others go on, and so does what is open."""
    guarding, limits = RequestGuardSettings(trusted_proxies=("127.0.0.1",)), RequestLimits(wrong_keys=Rate(3, 1))
    settings = replace(api.services.settings, guarding=guarding)
    api.services = replace(api.services, settings=settings, request_limits=limits)
    async with proxy_of(api, PROXY_SETTINGS) as proxy:
        await proxy.reserve(ada)
        token = await proxy.token(ada)
        guesser, other = [("X-Forwarded-For", "203.0.113.9")], [("X-Forwarded-For", "203.0.113.10")]
        async with proxy.open(token, headers=guesser) as session:
            await greeting(session)
            proxy.came = 0
            for number in range(3):
                await proxy.is_refused(f"gpudevt_guess-{number:032}", 401, headers=guesser)
            with pytest.raises(InvalidStatus) as refusal:
                async with proxy.open(token, headers=guesser):
                    pass
            assert refusal.value.response.status_code == 429
            assert int(refusal.value.response.headers["Retry-After"]) > 10
            assert proxy.came == 0
            async with proxy.open(token, headers=other) as elsewhere:
                await greeting(elsewhere)
            await session.send(b"on")
            assert await asyncio.wait_for(session.recv(), 10) == b"on"
        assert {entry.address for entry in await written(proxy) if entry.status == 429} == {"203.0.113.9"}
