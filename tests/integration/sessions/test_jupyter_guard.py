"""Jupyter's door is not tried for ever: wrong links and cookies are counted by address, and written down."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx2
import pytest
from starlette.responses import PlainTextResponse

from gpudev.adapters.postgres.stores import Stores
from gpudev.adapters.ssh_tunnels import SshTunnels
from gpudev.bootstrap.proxy import BROWSER_SESSION_TTL
from gpudev.http_edge.audit import AuditTrail
from gpudev.http_edge.rate_limits import Rate
from gpudev.ports.access import AuditEntry, AuditQuery
from gpudev.ports.clock import SystemClock
from gpudev.proxy.jupyter.guard import JupyterGuard
from gpudev.proxy.jupyter.http_proxy import JupyterAccess, JupyterHttpProxy
from gpudev.workflows.sessions.jupyter_access import BrowserSessions

JOB = "7f3c0d52-0000-4000-8000-000000000001"
BASE = f"/v1/jobs/{JOB}/jupyter/"
BURST = 3


async def nowhere(_host: str) -> str:
    raise AssertionError("nobody who is turned away is connected to anything")


@dataclass
class Door:
    client: httpx2.AsyncClient
    stores: Stores
    trail: AuditTrail

    async def status(self, path: str, address: str = "203.0.113.9", **headers: str) -> int:
        answer = await self.client.get(f"{BASE}{path}", headers={"X-Forwarded-For": address, **headers})
        return answer.status_code

    async def written(self) -> list[AuditEntry]:
        await self.trail.flush()
        return await self.stores.audit_log.find_entries(AuditQuery(action="jupyter"))


@pytest.fixture
async def at_the_door(stores: Stores) -> AsyncIterator[Door]:
    clock = SystemClock()
    trail = AuditTrail(stores.audit_log, clock)
    guard = JupyterGuard(trail, clock, ("127.0.0.1",), most_per_user=8, wrong_secrets=Rate(BURST, 1))
    browsing = BrowserSessions(stores.proxy_tokens, stores.addons, clock, BROWSER_SESSION_TTL)
    ways = SshTunnels(nowhere, 1.0)  # type: ignore[arg-type]
    pages = JupyterHttpProxy(PlainTextResponse("behind"), JupyterAccess(browsing, ways, guard, ()), 60)
    transport = httpx2.ASGITransport(app=pages)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield Door(client, stores, trail)
    await ways.close()


@pytest.mark.parametrize(
    "guess",
    [
        lambda number: (f"enter?ticket=guess-{number:032}", {}),
        lambda number: ("lab", {"Cookie": f"gpudev_jupyter=guess-{number:032}"}),
        lambda number: ("lab", {"Cookie": f"gpudev_jupyter=short{number}"}),
        lambda number: ("lab", {"Cookie": f"gpudev_jupyter=one{number:032}; gpudev_jupyter=two{number:032}"}),
    ],
    ids=["links", "cookies", "what is no cookie of ours", "several at once"],
)
async def test_an_address_that_tries_many_has_to_wait(at_the_door: Door, guess: object) -> None:
    for number in range(BURST):
        path, headers = guess(number)  # type: ignore[operator]
        assert await at_the_door.status(path, **headers) == 403
    path, headers = guess(BURST)  # type: ignore[operator]
    assert await at_the_door.status(path, **headers) == 429
    assert await at_the_door.status("enter?ticket=another") == 429, "links and cookies are counted together"
    assert await at_the_door.status(path, address="203.0.113.10", **headers) == 403, "others go on"
    written = await at_the_door.written()
    assert [entry.status for entry in written] == [403] * BURST + [429, 429, 403]
    first, waiting = written[0], written[BURST]
    assert (first.action, first.outcome, first.target) == ("GET /v1/jobs/{job_id}/jupyter/", "forbidden", JOB)
    assert (first.address, first.username) == ("203.0.113.9", None)
    assert waiting.outcome == "too_often"
    assert len({entry.request_id for entry in written}) == len(written)
    assert not [entry for entry in written if "guess" in str(entry)], "what was tried is not written down"


async def test_a_page_that_was_left_open_is_one_try_and_one_without_a_cookie_is_none(at_the_door: Door) -> None:
    for _ in range(3 * BURST):
        assert await at_the_door.status("lab", Cookie=f"gpudev_jupyter={'old' * 12}") == 403
        assert await at_the_door.status("lab") == 403
        assert await at_the_door.status("lab", Cookie="other=1") == 403
    assert {entry.status for entry in await at_the_door.written()} == {403}
