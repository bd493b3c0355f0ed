"""What people bring to their dev servers, from the command line to a shell, and that nothing of it is left or heard."""

import asyncio
import contextlib
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gpudev.adapters.postgres.database.pool import connect
from gpudev.embedded.layout import Layout
from gpudev.embedded.system import open_postgres
from support.polling import eventually
from support.sessions.dotfiles_server import URL, serve_dotfiles
from support.system.embedded_system import System

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("git") is None, reason="there is no git on this machine to clone with"),
]
PLANTED = "planted-own-setup-4711"


def test_variables_dotfiles_and_script_arrive_and_no_secret_stays_behind(clean: System, tmp_path: Path) -> None:
    with serve_dotfiles(tmp_path) as served:
        served.publish({"install.sh": "#!/bin/sh\necho alias > ~/.my_aliases\n"})
        (tmp_path / "my.env").write_text("".join(f"{name}='{value}'\n" for name, value in served.environment.items()))
        (tmp_path / "first.sh").write_text(f'# {PLANTED}\necho "$PIN" > ~/pin; exit 4\n')
        for name, value in (
            ("dotfiles", URL),
            ("startup-script", tmp_path / "first.sh"),
            ("env-file", tmp_path / "my.env"),
        ):
            clean.run("config", "set", name, str(value))
        try:
            job = clean.ask("reserve", "--gpus", "1", "--disk", "none", "--env", "PIN", PIN=PLANTED)
            words = eventually(lambda: _outcome(clean, job["reservation_id"]), "the set-up has come to an end")
        finally:
            for name in ("dotfiles", "startup_script", "env_file"):
                clean.run("config", "unset", name)
    assert words.startswith("dotfiles: cloned; install.sh: done; start-up script: ended with 4")
    command = [*clean.ssh(job), "cat ~/.my_aliases ~/pin; echo $PIN"]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.splitlines() == ["alias", PLANTED, PLANTED]
    history = clean.run("logs", job["reservation_id"]).stdout
    assert "start-up script: ended with 4" in history
    clean.run("cancel", job["reservation_id"], "--yes")
    clean.wait_until_released(job["reservation_id"])
    told = history + clean.run("status", job["reservation_id"], "--events", "--json").stdout
    assert PLANTED not in told
    assert PLANTED not in asyncio.run(_whole_database(clean))
    eventually(lambda: not _files_with_it(clean), "no file of the system holds it any more")


def _files_with_it(system: System) -> list[Path]:
    """But for PostgreSQL's own, which forget later."""
    found = []
    for path in (system.home / "state").rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and "postgres" not in path.parts and PLANTED.encode() in path.read_bytes():
                found.append(path)
    return found


def _outcome(system: System, job_id: str) -> str | None:
    words: str | None = system.ask("status", job_id)["setup_outcome"]
    return words if words is not None and "running" not in words else None


async def _whole_database(system: System) -> str:
    database = open_postgres(Layout(system.home / "state")).database_settings()
    connection = await connect(replace(database))
    try:
        tables = await connection.fetch("SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables")
        rows = []
        for table in tables:
            if not table["name"].startswith(("pg_catalog.", "information_schema.")):
                rows += await connection.fetch(f"SELECT t::text AS row FROM {table['name']} t")  # noqa: S608 - our own names
        assert rows
        return json.dumps([row["row"] for row in rows])
    finally:
        await connection.close()
