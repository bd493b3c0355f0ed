"""Planted secrets, and a whole system used with them: none is ever in a log, an output, an error, a row of the database
or the arguments of a process."""

import asyncio
import json
import os
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from gpudev.adapters.postgres.database.pool import connect
from gpudev.embedded.layout import Layout
from gpudev.embedded.system import open_postgres
from support.polling import eventually
from support.system.embedded_system import System

PLANTED = {
    "AWS_SECRET_ACCESS_KEY": "planted/aws/wJalrXUtnFEMIK7MDENGbPxRfiCY",
    "POSTGRES_PASSWORD": "planted-postgres-password",
    "GPU_DEV_SOMETHING_SECRET": "planted-setting",
}


@dataclass
class Ear:
    """All that the system said to anybody, and every argument of every process meanwhile."""

    said: list[str] = field(default_factory=list)
    arguments: set[str] = field(default_factory=set)
    _stop: threading.Event = field(default_factory=threading.Event)

    def watch_processes(self) -> None:
        while not self._stop.wait(0.1):
            for process in psutil.process_iter(["cmdline"]):
                self.arguments.add("\0".join(process.info["cmdline"] or []))

    def stop(self) -> None:
        self._stop.set()


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    home = Path(tmp_path_factory.mktemp("home"))
    running = System.start(home, environment=PLANTED)
    yield running
    running.stop()


@pytest.fixture
def ear() -> Iterator[Ear]:
    ear = Ear()
    watching = threading.Thread(target=ear.watch_processes)
    watching.start()
    yield ear
    ear.stop()
    watching.join()


def keep(ear: Ear, done: subprocess.CompletedProcess[str]) -> str:
    ear.said += [done.stdout, done.stderr]
    return done.stdout


def ask(system: System, ear: Ear, path: str, key: str, method: str = "GET", body: bytes | None = None) -> bytes:
    url = json.loads((system.home / "state" / "run" / "system.json").read_text())["api_url"]
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(url + path, body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as refusal:
        with refusal:
            text = refusal.read()
        ear.said.append(text.decode())
        return text


async def rows(system: System) -> str:
    """Every row of every table, as text."""
    database = open_postgres(Layout((system.home / "state").resolve())).database_settings()
    connection = await connect(database)
    names = await connection.fetch(
        "SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables WHERE schemaname IN ('public', 'pgmq')"
    )
    found = []
    for name in names:
        found += [row["line"] for row in await connection.fetch(f"SELECT t::text AS line FROM {name['name']} t")]  # noqa: S608
    await connection.close()
    return "\n".join(found)


@pytest.mark.slow
def test_no_secret_is_ever_anywhere_it_could_be_read(system: System, ear: Ear) -> None:
    secrets = dict(PLANTED)
    (owner,) = json.loads((system.home / ".gpu-dev" / "credentials").read_text()).values()
    secrets["owner's key"] = owner["api_key"]
    secrets["bob's key"] = system.add_user("bob")
    bob = secrets["bob's key"]
    invited = system.server("users", "invite", "carla")
    secrets["invitation"] = eventually(lambda: invited.stdout.rpartition("#")[2].split()[0].split(".")[0], "no link")
    assert len(secrets["invitation"]) >= 43
    private = (system.home / "id").with_suffix("")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(private)], check=True)
    secrets["private ssh key"] = private.read_text().splitlines()[2]

    keep(ear, system.run("reserve", "--gpus", "1", "--hours", "1", "--disk", "none", "--key", f"{private}.pub"))
    keep(ear, system.run("list"))
    keep(ear, system.run("reserve", "--gpus", "3000", "--hours", "1", code=None))
    rotated = json.loads(ask(system, ear, "/v1/keys/rotate", bob, "POST"))["api_key"]
    secrets["rotated key"] = rotated
    ask(system, ear, "/v1/jobs", bob)  # a key that is none any more
    ask(system, ear, "/v1/jobs/submit", rotated, "POST", b'{"gpu_type": "' + rotated.encode() + b'"}')
    ask(system, ear, f"/v1/jobs/{rotated}", rotated)
    secrets["guessed key"] = "gpudev_" + "guess" * 9
    ask(system, ear, "/v1/jobs", secrets["guessed key"])
    for command in (
        ["keys", "list", "--all"],
        ["users", "list"],
        ["queue", "list"],
        ["audit"],
        ["migrate", "--status"],
    ):
        keep(ear, system.server(*command))
    os.kill(system.pid("postgres"), signal.SIGKILL)  # and errors of every kind
    ask(system, ear, "/v1/jobs", rotated)
    eventually(system.ready, "it did not come back")
    keep(ear, system.server("users", "disable", "bob"))
    keep(ear, system.run("cancel", "--all", "--yes"))

    # What its own holder wrote into a field of a request is repeated to them (and to nobody else) as what is wrong.
    ear.said = [text for text in ear.said if rotated[:12] not in text or '"field"' not in text]
    logs = {path: path.read_text(errors="replace") for path in (system.home / "state").rglob("*.log*")}
    assert {path.name for path in logs} >= {"api.log", "processor.log", "postgres.log"}
    assert any("http.request" in text for text in logs.values())
    places = {
        "output": "\n".join(ear.said),
        "arguments": "\n".join(ear.arguments),
        "database": asyncio.run(rows(system)),
        **{path.name: text for path, text in logs.items()},
    }
    assert "gpudev.main" in places["arguments"]
    assert "POST /v1/jobs/submit" in places["database"]
    found = [
        f"{name} in {place}" for name, secret in secrets.items() for place, text in places.items() if secret in text
    ]
    assert found == []
