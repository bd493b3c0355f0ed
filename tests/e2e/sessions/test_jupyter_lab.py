"""JupyterLab itself, of an environment of its own, through the proxy: its kernels' protocol, and a browser that runs a
cell."""

import asyncio
import base64
import json
import re
import subprocess
import uuid
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from websockets.asyncio.client import connect

from support.fixtures.jupyter import Place
from support.sessions import chromium

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[3]
_RUN = ".jp-NotebookPanel-toolbar [data-jp-item-name=run] jp-button"
_IS_RUN = "document.querySelector('.jp-Notebook .jp-InputPrompt').innerText != '[ ]:'"
"""A star, and then a number, stand there from when it was asked to run."""


@pytest.fixture(scope="session")
def programs() -> Path:
    done = subprocess.run([ROOT / "tools" / "jupyter-lab"], capture_output=True, text=True, check=False, timeout=600)
    if done.returncode != 0:
        pytest.skip(f"NOT TESTED: JupyterLab cannot be installed here: {done.stderr[-300:]}")
    return Path(done.stdout.strip())


async def with_jupyter(place: Place, client: httpx2.AsyncClient, programs: Path) -> tuple[str, Path]:
    job_id = await place.active(client)
    home = place.home(job_id)
    (home / ".bash_profile").write_text(f"PATH={programs}:$PATH\n")
    await client.post(f"/v1/jobs/{job_id}/jupyter/enable")
    await place.until(client, f"/v1/jobs/{job_id}/jupyter", "state", "ready")
    return job_id, home


async def link(client: httpx2.AsyncClient, job_id: str) -> str:
    url: str = (await client.post(f"/v1/jobs/{job_id}/jupyter/link")).json()["url"]
    return url


def execute(code: str) -> dict[str, Any]:
    header = {
        "msg_id": uuid.uuid4().hex,
        "msg_type": "execute_request",
        "username": "",
        "session": "s",
        "version": "5.3",
    }
    content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
    return {
        "header": header,
        "parent_header": {},
        "metadata": {},
        "content": content,
        "channel": "shell",
        "buffers": [],
    }


async def test_a_kernel_runs_code_and_files_go_both_ways_through_the_proxy(place: Place, programs: Path) -> None:
    ada = await place.as_user("ada")
    job_id, home = await with_jupyter(place, ada, programs)
    base = f"/v1/jobs/{job_id}/jupyter/"
    async with httpx2.AsyncClient(base_url=place.url, timeout=60) as person:
        given = (await person.get(await link(ada, job_id))).headers["set-cookie"]
        found = re.match(r"gpudev_jupyter=[^;]+", given)
        assert found is not None
        headers = {"Cookie": found[0], "Origin": place.url}
        page = await person.get(f"{base}lab", headers=headers)
        assert (page.status_code, "jupyter-config-data" in page.text) == (200, True)
        kernel = (await person.post(f"{base}api/kernels", headers=headers, json={"name": "python3"})).json()["id"]
        url = f"{place.url.replace('http', 'ws')}{base}api/kernels/{kernel}/channels"
        async with connect(url, additional_headers={"Cookie": found[0]}, origin=place.url, proxy=None) as socket:  # type: ignore[arg-type]
            await socket.send(json.dumps(execute("import os; print(6 * 7, os.getcwd())")))
            async with asyncio.timeout(60):
                while True:
                    told = json.loads(await socket.recv())
                    if told["msg_type"] == "stream":
                        break
        assert told["content"]["text"] == f"42 {home}\n"
        big = "x" * 3_000_000
        put = {"type": "file", "format": "text", "content": big}
        assert (await person.put(f"{base}api/contents/big.txt", headers=headers, json=put)).status_code == 201
        assert (home / "big.txt").read_text() == big
        assert (await person.get(f"{base}files/big.txt", headers=headers)).text == big
    assert not listening_tcp_ports(home), "anybody on the machine can take a port, and would get the token"
    await ada.aclose()


def listening_tcp_ports(home: Path) -> list[int]:
    """Those of the Jupyter of this home."""
    found = [
        process
        for process in psutil.process_iter(["cmdline"])
        if f"--ServerApp.root_dir={home}" in (process.info["cmdline"] or [])
    ]
    assert found
    return [
        connection.laddr.port
        for process in found
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]


async def test_a_browser_opens_lab_and_runs_a_cell(place: Place, programs: Path, tmp_path: Path) -> None:
    program = chromium.find_program()
    if program is None:
        pytest.skip("NOT TESTED: there is no Chromium here (Debian's package 'chromium')")
    ada = await place.as_user("ada")
    job_id, home = await with_jupyter(place, ada, programs)
    cell = {
        "cell_type": "code",
        "source": "print(6 * 7)",
        "metadata": {},
        "outputs": [],
        "execution_count": None,
        "id": "c",
    }
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = {"cells": [cell], "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    (home / "cell.ipynb").write_text(json.dumps(notebook))
    async with chromium.opened(program, tmp_path / "browser", place.url + await link(ada, job_id)) as tab:
        await tab.wait_for(
            "location.pathname.endsWith('/jupyter/lab') && document.querySelector('.jp-LabShell') && true"
        )
        assert await tab.evaluate("document.cookie.includes('gpudev_jupyter')") is False, "no page can read it"
        await tab.do("Page.navigate", url=f"{place.url}/v1/jobs/{job_id}/jupyter/lab/tree/cell.ipynb")
        await tab.wait_for("document.querySelector('.jp-Notebook .cm-content') && true")
        await tab.wait_for("document.querySelector('.jp-Notebook-ExecutionIndicator[data-status=idle]') && true")
        await tab.wait_for("!document.querySelector('.jp-NotebookPanel .jp-Spinner')")
        await tab.wait_for("document.body.innerText.includes('| Idle')")
        await tab.wait_for(f"!({_IS_RUN})")
        for _ in range(30):  # what is clicked while Lab still settles in is lost
            await tab.click(".jp-Notebook .jp-InputPrompt")
            await tab.click(_RUN)
            if await tab.find(_IS_RUN, seconds=3):
                break
        assert await tab.wait_for("document.querySelector('.jp-OutputArea-output')?.innerText.trim()") == "42"
        picture = await tab.do("Page.captureScreenshot")
        (tmp_path / "lab.png").write_bytes(base64.b64decode(picture["data"]))
    await ada.aclose()
