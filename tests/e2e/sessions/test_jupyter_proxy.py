"""The way from a browser to Jupyter: who is let through, what is passed on, and what is not. Jupyter is a stand-in here
that tells what it was asked; the real one is in test_jupyter_itself."""

import asyncio
import re
import shutil
from contextlib import AsyncExitStack, suppress
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from support.fixtures.jupyter import MOST_PER_USER, STUB, Place
from support.polling import eventually_async

pytestmark = pytest.mark.slow


async def with_stub(place: Place, client: httpx2.AsyncClient) -> str:
    job_id = await place.active(client)
    programs = place.home(job_id) / "bin"
    programs.mkdir()
    shutil.copy(STUB, programs / "jupyter-lab")
    (programs / "jupyter-lab").chmod(0o755)
    (place.home(job_id) / ".bash_profile").write_text(f"PATH={programs}:$PATH\n")
    assert (await client.post(f"/v1/jobs/{job_id}/jupyter/enable")).json()["state"] == "starting"
    await place.until(client, f"/v1/jobs/{job_id}/jupyter", "state", "ready")
    return job_id


async def browser(place: Place, client: httpx2.AsyncClient, job_id: str) -> tuple[httpx2.AsyncClient, str]:
    """One that followed the link, and the cookie that it was given."""
    link = (await client.post(f"/v1/jobs/{job_id}/jupyter/link")).json()["url"]
    found = httpx2.AsyncClient(base_url=place.url, timeout=30)
    page = await found.get(link)
    assert page.status_code == 200, page.text
    assert f"url=/v1/jobs/{job_id}/jupyter/lab" in page.text
    given = page.headers["set-cookie"]
    for wanted in (f"Path=/v1/jobs/{job_id}/jupyter/;", "HttpOnly", "SameSite=Strict", "Max-Age=86400"):
        assert wanted in given
    assert "Secure" not in given, "nothing leaves this machine here"
    again = await found.get(link, headers={"Cookie": ""})
    assert again.status_code == 403, "a link is good once"
    match = re.match(r"gpudev_jupyter=([^;]+)", given)
    assert match is not None
    return found, match[1]


def socket(place: Place, job_id: str, secret: str, origin: str | None) -> "connect":
    url = f"{place.url.replace('http', 'ws')}/v1/jobs/{job_id}/jupyter/api/kernels/x/channels"
    headers = {"Cookie": f"other=1; gpudev_jupyter={secret}"}
    # The stand-in does not say good-bye.
    return connect(url, additional_headers=headers, origin=origin, proxy=None, close_timeout=0.1)  # type: ignore[arg-type]


async def test_a_browser_that_followed_the_link_reaches_jupyter_and_nobody_else_does(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    ada, bob = await place.as_user("ada"), await place.as_user("bob")
    job_id = await with_stub(place, ada)
    base = f"/v1/jobs/{job_id}/jupyter/"
    person, secret = await browser(place, ada, job_id)
    await check_what_is_passed_on(person, base, secret)
    await check_odd_answers(person, base, secret)
    assert [
        record.getMessage() for record in caplog.records if record.name == "uvicorn.error" and record.levelno > 20
    ] == []
    await check_who_is_turned_away(place, ada, bob, job_id, secret)
    await check_websockets(place, ada, job_id, secret)
    for client in (ada, bob, person):
        await client.aclose()


async def check_what_is_passed_on(person: httpx2.AsyncClient, base: str, secret: str) -> None:
    cookies = {"Cookie": f"gpudev_jupyter={secret}; _xsrf=2|x"}
    answer = await person.get(f"{base}api/contents?content=1&a=%2F", headers={**cookies, "X-Forwarded-For": "9.9.9.9"})
    told = answer.json()
    assert (told["method"], told["path"]) == ("GET", f"{base}api/contents?content=1&a=%2F")
    assert secret not in answer.text, "what opens the way through us is not Jupyter's to know"
    assert told["headers"]["cookie"] == "_xsrf=2|x"
    assert told["headers"]["authorization"].startswith("token ")
    assert "x-forwarded-for" not in told["headers"]
    assert answer.headers.get_list("set-cookie") == [f"_xsrf=of-jupyter; Path={base}"], "none with the name of ours"
    origin = {"Origin": str(person.base_url).rstrip("/")}
    told = (await person.put(f"{base}api/contents/x", headers={**cookies, **origin}, content=b"hello" * 100_000)).json()
    assert (told["method"], len(told["body"])) == ("PUT", 500_000)

    async def pieces() -> object:
        for _ in range(3):
            yield b"piece"

    told = (await person.post(f"{base}api/x", headers={**cookies, **origin}, content=pieces())).json()  # type: ignore[arg-type]
    assert told["body"] == "piece" * 3
    assert (await person.get(f"{base}%0d%0aX-Evil:%20yes", headers=cookies)).status_code == 200
    assert "x-evil" not in (await person.get(f"{base}a%0d%0aX-Evil:%20yes", headers=cookies)).json()["headers"]
    without_host = await person.get(f"{base}lab", headers={**cookies, "Connection": "host"})
    assert without_host.status_code == 422, "the fault is not Jupyter's"


async def check_odd_answers(person: httpx2.AsyncClient, base: str, secret: str) -> None:
    """Nobody takes half an answer for a whole one, and what a dev server does is no fault of the control plane."""
    cookies = {"Cookie": f"gpudev_jupyter={secret}"}
    for how in ("cut", "cut-chunks", "no-http"):
        with pytest.raises(httpx2.TransportError):
            await person.get(f"{base}odd/{how}", headers=cookies)
    for how in ("no-status", "nothing", "endless-interim"):
        assert (await person.get(f"{base}odd/{how}", headers=cookies)).status_code == 503, how


async def check_who_is_turned_away(
    place: Place, ada: httpx2.AsyncClient, bob: httpx2.AsyncClient, job_id: str, secret: str
) -> None:
    base = f"/v1/jobs/{job_id}/jupyter/"
    async with httpx2.AsyncClient(base_url=place.url) as stranger:
        assert (await stranger.get(f"{base}lab")).status_code == 403
        assert (await stranger.get(f"{base}lab", headers={"Cookie": "gpudev_jupyter=" + "x" * 43})).status_code == 403
        page = await stranger.get(f"{base}lab", headers={"Accept": "text/html"})
        assert (page.status_code, page.headers["content-type"]) == (403, "text/html; charset=utf-8")
        assert "gpu-dev jupyter open" in page.text
        assert (await stranger.get(f"{base}enter?ticket={secret}")).status_code == 403, "a cookie is no link"
        token = (await ada.post(f"/v1/jobs/{job_id}/proxy-token")).json()["token"]
        assert (await stranger.get(f"{base}lab", headers={"Cookie": f"gpudev_jupyter={token}"})).status_code == 403
        cookie = {"Cookie": f"gpudev_jupyter={secret}"}
        for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}):
            assert (await stranger.post(f"{base}api/kernels", headers={**cookie, **headers})).status_code == 403
        assert (await stranger.get(f"{base}lab", headers={**cookie, "Sec-Fetch-Site": "same-site"})).status_code == 403
        assert (await stranger.request("TRACE", f"{base}lab", headers=cookie)).status_code == 422
    for path in ("", "/link", "/enable", "/disable"):
        answer = await bob.request("POST" if path else "GET", f"/v1/jobs/{job_id}/jupyter{path}")
        assert answer.status_code == 404, path
    theirs = await place.active(bob)
    await bob.post(f"/v1/jobs/{theirs}/jupyter/enable")
    async with httpx2.AsyncClient(base_url=place.url) as browser_of_bob:
        link = (await bob.post(f"/v1/jobs/{theirs}/jupyter/link")).json()["url"]
        given = (await browser_of_bob.get(link)).headers["set-cookie"].partition(";")[0]
        answer = await browser_of_bob.get(f"{base}lab", headers={"Cookie": given})
        assert answer.status_code == 404, "another user's Jupyter is not there"
    opened = await place.audited("jupyter opened")
    assert [(entry.username, entry.target) for entry in opened] == [("ada", job_id), ("bob", theirs)]
    (stray,) = [entry for entry in await place.audited("GET /v1/jobs/{job_id}/jupyter/") if entry.status == 404]
    assert (stray.target, stray.outcome, stray.address) == (job_id, "not_found", "127.0.0.1")
    await bob.post(f"/v1/jobs/{theirs}/cancel")


async def check_websockets(place: Place, ada: httpx2.AsyncClient, job_id: str, secret: str) -> None:
    for wrong, origin in ((secret, "https://evil.example"), (secret, None), ("x" * 43, place.url), (secret, "null")):
        with pytest.raises(InvalidStatus) as refused:
            async with socket(place, job_id, wrong, origin):
                pass
        assert refused.value.response.status_code == 403
    await check_there_is_a_bound(place, job_id, secret)
    async with socket(place, job_id, secret, place.url) as first, socket(place, job_id, secret, place.url) as second:
        assert first.response is not None
        assert not {"set-cookie", "strict-transport-security"} & {name.lower() for name in first.response.headers}
        for number in range(20):
            for one in (first, second):
                await one.send(f"message {number}")
                assert await one.recv() == f"message {number}"
        await ada.post(f"/v1/jobs/{job_id}/cancel")
        for one in (first, second):
            await ends(one)


async def check_there_is_a_bound(place: Place, job_id: str, secret: str) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(MOST_PER_USER):
            await stack.enter_async_context(socket(place, job_id, secret, place.url))
        with pytest.raises(InvalidStatus) as refused:
            await stack.enter_async_context(socket(place, job_id, secret, place.url))
        assert refused.value.response.status_code == 429
        async with httpx2.AsyncClient(base_url=place.url, headers={"Cookie": f"gpudev_jupyter={secret}"}) as person:
            assert (await person.get(f"/v1/jobs/{job_id}/jupyter/lab")).status_code == 429
    assert {entry.outcome for entry in await place.audited("jupyter/") if entry.status == 429} == {"limit_reached"}
    async with asyncio.timeout(30):
        while True:  # those that were closed make room
            with suppress(InvalidStatus):
                async with socket(place, job_id, secret, place.url):
                    return


async def ends(connection: ClientConnection) -> None:
    async with asyncio.timeout(30):
        with pytest.raises(ConnectionClosed):
            while True:
                await connection.recv()


async def test_without_jupyter_in_the_dev_server_its_owner_is_told_what_to_do(place: Place) -> None:
    ada = await place.as_user("ada")
    job_id = await place.active(ada)
    path = f"/v1/jobs/{job_id}/jupyter"
    assert (await ada.get(path)).json()["state"] == "off"
    assert (await ada.post(f"{path}/link")).status_code == 409
    (place.home(job_id) / ".bash_profile").write_text("PATH=/usr/bin:/bin\n")
    await ada.post(f"{path}/enable")

    async def failed() -> dict[str, Any] | None:
        status: dict[str, Any] = (await ada.get(path)).json()
        return status if status["state"] == "failed" else None

    told = await eventually_async(failed, every=0.1)
    assert "gpu-dev jupyter enable --install" in told["reason"]
    assert "gpu-dev jupyter enable --install" in (await ada.post(f"{path}/link")).json()["detail"]
    assert (await ada.post(f"{path}/disable")).json()["state"] == "off"
    await ada.aclose()


async def test_a_link_that_is_opened_too_early_leads_to_a_page_that_waits(place: Place) -> None:
    ada = await place.as_user("ada")
    job_id = await place.active(ada)
    home = place.home(job_id)
    (home / "bin").mkdir()
    program = home / "bin" / "jupyter-lab"
    program.write_text(f'#!/bin/sh\nwhile [ ! -e {home}/go ]; do sleep 0.1; done\nexec python3 {STUB} "$@"\n')
    program.chmod(0o755)
    (home / ".bash_profile").write_text(f"PATH={home}/bin:$PATH\n")
    assert (await ada.post(f"/v1/jobs/{job_id}/jupyter/enable")).json()["state"] == "starting"
    person, secret = await browser(place, ada, job_id)
    opened = {"Cookie": f"gpudev_jupyter={secret}", "Accept": "text/html"}

    async def lab() -> httpx2.Response:
        return await person.get(f"/v1/jobs/{job_id}/jupyter/lab", headers=opened)

    async def waits() -> bool:
        return "tries again by itself" in (await lab()).text

    await eventually_async(waits, every=0.1)
    early = await lab()
    assert early.status_code == 503
    assert 'http-equiv="refresh"' in early.text
    (home / "go").touch()

    async def is_there() -> bool:
        return (await lab()).status_code == 200

    await eventually_async(is_there, within=60, every=0.2)
    for client in (ada, person):
        await client.aclose()
