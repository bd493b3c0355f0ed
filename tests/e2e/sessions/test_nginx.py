"""Everything through a real nginx with TLS, configured as the documentation says: ssh, streams of events, Jupyter.

Only its patience is shorter: what is silent for PATIENCE seconds is cut. Pings come more often, as they do outside.
"""

import asyncio
import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import connect

from gpudev.settings import Settings
from support.fixtures.jupyter import STUB, Place
from support.ports import NEEDS_OTHER_ADDRESS, OTHER_ADDRESS
from support.sessions.nginx import Nginx, find_nginx, nginx_before

pytestmark = [pytest.mark.slow, NEEDS_OTHER_ADDRESS]
PATIENCE = 4
CLIENT = OTHER_ADDRESS
"""Another address of this machine than nginx has."""


@pytest.fixture
def place_settings(settings: Settings) -> Settings:
    proxy = replace(settings.proxy, ping_every=timedelta(seconds=0.5))
    guarding = replace(settings.guarding, trusted_proxies=("127.0.0.1",))
    return replace(settings, api_port=0, proxy=proxy, guarding=guarding)


@pytest.fixture
def program() -> str:
    found = find_nginx()
    if found is None:
        pytest.skip("NOT TESTED: there is no nginx on this machine (make test provides it where it can)")
    return found


@pytest.fixture
def nginx(program: str, place: Place, tmp_path: Path) -> Iterator[Nginx]:
    shorter = {
        "proxy_read_timeout      60s;": f"proxy_read_timeout {PATIENCE}s;",
        "proxy_send_timeout      60s;": f"proxy_send_timeout {PATIENCE}s;",
    }
    with nginx_before(program, place.url, tmp_path / "nginx", shorter) as running:
        yield running


@pytest.fixture
async def ada(place: Place, nginx: Nginx) -> AsyncIterator[httpx2.AsyncClient]:
    """From elsewhere, with a header that says she comes from somewhere else again."""
    headers = {"Authorization": f"Bearer {await place.secret('ada')}", "X-Forwarded-For": "203.0.113.9"}
    transport = httpx2.AsyncHTTPTransport(verify=nginx.trust, local_address=CLIENT)
    async with httpx2.AsyncClient(base_url=nginx.url, headers=headers, transport=transport, timeout=30) as client:
        yield client


@pytest.fixture
async def job(place: Place, ada: httpx2.AsyncClient, tmp_path: Path) -> dict[str, Any]:
    await asyncio.to_thread(
        subprocess.run,
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")],
        check=True,
        timeout=30,
    )
    body = {
        "gpu_type": "h100",
        "ssh_public_keys": [(tmp_path / "key.pub").read_text().strip()],
        "disk_name": "none",
    }
    submitted = (await ada.post("/v1/jobs/submit", json=body)).json()
    return await place.until(ada, f"/v1/jobs/{submitted['job_id']}", "status", "active")


def ssh(nginx: Nginx, job: dict[str, Any], tmp_path: Path) -> list[str]:
    (tmp_path / "known").write_text(f"there {job['ssh_host_key']}\n")
    command = f"{shlex.quote(sys.executable)} -m gpudev.cli proxy-command {job['job_id']}"
    return [
        "ssh", "-F", "none", "-o", f"ProxyCommand={command}", "-o", "HostKeyAlias=there",
        "-o", f"UserKnownHostsFile={tmp_path / 'known'}", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes",
        "-i", str(tmp_path / "key"), "dev@nowhere.invalid",
    ]  # fmt: skip


def environment(nginx: Nginx, key: str, tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GPU_DEV_", "SSL_"))}
    own = {"HOME": str(tmp_path), "GPU_DEV_API_URL": nginx.url, "GPU_DEV_API_KEY": key}
    return {**kept, **own, "SSL_CERT_FILE": str(nginx.certificate)}


async def run(command: list[str], env: dict[str, str], given: bytes = b"") -> tuple[int | None, bytes, bytes]:
    running = await asyncio.create_subprocess_exec(*command, env=env, stdin=-1, stdout=-1, stderr=-1)
    async with asyncio.timeout(90):
        out, errors = await running.communicate(given)
    return running.returncode, out, errors


async def test_ssh_events_and_jupyter_pass_through_nginx_and_live_through_silence(
    place: Place, nginx: Nginx, ada: httpx2.AsyncClient, job: dict[str, Any], tmp_path: Path
) -> None:
    """At once, because each is silent for a while."""
    if shutil.which("ssh") is None:
        pytest.skip("NOT TESTED: there is no ssh on this machine (make test installs it where it can)")
    env = environment(nginx, await place.secret("ada"), tmp_path)
    way = ssh(nginx, job, tmp_path)
    async with asyncio.TaskGroup() as together:
        together.create_task(check_ssh(way, env))
        together.create_task(check_events(ada, job["job_id"]))
        together.create_task(check_jupyter(place, nginx, ada, job["job_id"]))
    assert {entry.address for entry in await place.audited("extend")} == {CLIENT}
    opened = await place.audited("ssh session opened")
    assert {(entry.username, entry.address) for entry in opened} == {("ada", "127.0.0.1")}
    await check_the_end_is_told(way, env, ada, job["job_id"])


async def check_ssh(way: list[str], env: dict[str, str]) -> None:
    content = os.urandom(3_000_000)
    silent = asyncio.create_task(run([*way, f"sleep {PATIENCE + 2}; echo awake"], env))
    assert await run([*way, "cat; echo oh >&2; exit 3"], env, content) == (3, content, b"oh\n")
    assert await silent == (0, b"awake\n", b"")


async def check_events(ada: httpx2.AsyncClient, job_id: str) -> None:
    """Each is heard when it happens, not when a buffer is full."""
    async with ada.stream("GET", f"/v1/jobs/{job_id}/events") as events, asyncio.timeout(30):
        heard = events.aiter_lines()
        while '"active"' not in await anext(heard):
            pass
        assert (await ada.post(f"/v1/jobs/{job_id}/extend", json={"extension_hours": 1})).status_code == 200
        while '"extended"' not in await anext(heard):
            pass


async def check_the_end_is_told(way: list[str], env: dict[str, str], ada: httpx2.AsyncClient, job_id: str) -> None:
    session = await asyncio.create_subprocess_exec(*way, "echo in; cat", env=env, stdin=-1, stdout=-1, stderr=-1)
    assert session.stdout is not None
    assert session.stderr is not None
    async with asyncio.timeout(60):
        assert await session.stdout.readline() == b"in\n"
        await ada.post(f"/v1/jobs/{job_id}/cancel")
        errors = await session.stderr.read()  # its input stays open: it would end by itself otherwise
        await session.wait()
    assert "is cancelled" in errors.decode()


async def check_jupyter(place: Place, nginx: Nginx, ada: httpx2.AsyncClient, job_id: str) -> None:
    with_stub(place, job_id)
    await ada.post(f"/v1/jobs/{job_id}/jupyter/enable")
    await place.until(ada, f"/v1/jobs/{job_id}/jupyter", "state", "ready")
    link = (await ada.post(f"/v1/jobs/{job_id}/jupyter/link")).json()["url"]
    async with httpx2.AsyncClient(base_url=nginx.url, verify=nginx.trust, timeout=30) as browser:
        given = (await browser.get(link)).headers["set-cookie"]
        assert given.endswith("; Secure"), "it came by TLS, whatever the name"
        base, cookie = f"/v1/jobs/{job_id}/jupyter/", given.partition(";")[0]
        page = {"Cookie": cookie, "Origin": nginx.url, "Sec-Fetch-Site": "same-origin"}
        large = "x" * 3_000_000
        told = (await browser.put(f"{base}api/contents/a%2Fb%20c", headers=page, content=large)).json()
        assert (told["path"], told["body"]) == (f"{base}api/contents/a%2Fb%20c", large)
    async with silent_kernel(nginx, base, cookie) as kernel:
        await kernel.send("still here?")
        async with asyncio.timeout(30):
            assert await kernel.recv() == "still here?"


def with_stub(place: Place, job_id: str) -> None:
    programs = place.home(job_id) / "bin"
    programs.mkdir()
    shutil.copy(STUB, programs / "jupyter-lab")
    (programs / "jupyter-lab").chmod(0o755)
    (place.home(job_id) / ".bash_profile").write_text(f"PATH={programs}:$PATH\n")


@contextlib.asynccontextmanager
async def silent_kernel(nginx: Nginx, base: str, cookie: str) -> AsyncIterator[Any]:
    """Nobody has said anything for longer than nginx waits; this client pings nobody either."""
    url = f"{nginx.url.replace('https', 'wss')}{base}api/kernels/x/channels"
    opening = connect(
        url,
        additional_headers={"Cookie": cookie},
        origin=nginx.url,  # type: ignore[arg-type]
        ssl=nginx.trust,
        proxy=None,
        ping_interval=None,
        close_timeout=0.1,
    )
    async with opening as kernel:
        await asyncio.sleep(PATIENCE + 2)  # nginx's own time-outs are the subject
        yield kernel
