# ruff: noqa: ASYNC222, ASYNC240
"""The unix socket between the SSH server and Jupyter: what is there must be a socket of this user."""

import asyncio
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudev.adapters.local.sshd import jupyter, jupyter_socket
from gpudev.adapters.local.sshd.child_process import ChildWatcher
from gpudev.adapters.local.sshd.sshd_config import SshdConfig

IS_ROOT = os.geteuid() == 0


@pytest.fixture
def path(tmp_path: Path) -> Iterator[str]:
    made = jupyter_socket.make_socket_path(["/tmp"])
    yield made
    jupyter_socket.remove_socket_folder(made)


def listen(path: str) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    return server


def test_every_socket_has_a_new_folder_that_only_its_user_may_enter(path: str) -> None:
    other = jupyter_socket.make_socket_path(["/tmp"])
    try:
        assert Path(other).parent != Path(path).parent
        assert Path(path).parent.stat().st_mode & 0o777 == 0o700
        assert not os.path.lexists(path)
    finally:
        jupyter_socket.remove_socket_folder(other)


def test_a_path_that_is_too_long_for_a_socket_is_not_chosen(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    made = jupyter_socket.make_socket_path([str(deep), "/tmp"])
    try:
        assert made.startswith("/tmp/")
        listen(made).close()
    finally:
        jupyter_socket.remove_socket_folder(made)
    with pytest.raises(OSError, match="short enough"):
        jupyter_socket.make_socket_path([str(deep)])


def test_a_folder_that_cannot_be_used_is_passed_over() -> None:
    made = jupyter_socket.make_socket_path(["/proc", "/tmp"])
    jupyter_socket.remove_socket_folder(made)
    assert made.startswith("/tmp/")


async def test_its_own_socket_is_connected_to(path: str) -> None:
    with listen(path):
        (await jupyter_socket.connect_to_own_socket(path)).close()


async def test_a_link_to_a_socket_is_rejected(path: str) -> None:
    with listen(f"{path}.real"):
        Path(path).symlink_to(f"{path}.real")
        with pytest.raises(PermissionError):
            await jupyter_socket.connect_to_own_socket(path)


async def test_a_file_a_stale_socket_and_nothing_at_all_are_rejected(path: str) -> None:
    with pytest.raises(FileNotFoundError):
        await jupyter_socket.connect_to_own_socket(path)
    Path(path).touch()
    with pytest.raises(PermissionError):
        await jupyter_socket.connect_to_own_socket(path)
    Path(path).unlink()
    listen(path).close()
    with pytest.raises(ConnectionRefusedError):
        await jupyter_socket.connect_to_own_socket(path)


async def test_a_socket_in_a_folder_that_others_may_enter_is_rejected(path: str) -> None:
    with listen(path):
        Path(path).parent.chmod(0o755)
        with pytest.raises(PermissionError):
            await jupyter_socket.connect_to_own_socket(path)


@pytest.mark.skipif(not IS_ROOT, reason="only root can give files to another user")
async def test_a_socket_or_folder_of_another_user_is_rejected(path: str) -> None:
    with listen(path):
        for foreign in (path, str(Path(path).parent)):
            os.chown(foreign, 65534, 65534)
            with pytest.raises(PermissionError):
                await jupyter_socket.connect_to_own_socket(path)
            os.chown(foreign, 0, 0)


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
async def test_a_listener_of_another_user_gets_nothing_even_on_our_own_socket(path: str) -> None:
    folder = Path(path).parent
    folder.chmod(0o777)
    ready_end, ready = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setresuid(65534, 65534, 65534)
            server = listen(path)
            os.write(ready, b"x")
            server.accept()[0].recv(1)
        finally:
            os._exit(0)
    try:
        await asyncio.to_thread(os.read, ready_end, 1)
        os.chown(path, 0, 0)
        folder.chmod(0o700)
        with pytest.raises(PermissionError, match="another user"):
            await jupyter_socket.connect_to_own_socket(path)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(ready_end)
        os.close(ready)


async def test_a_jupyter_that_knows_no_sockets_fails_with_the_needed_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jupyter, "_READY_TIMEOUT_S", 0.5)
    program = tmp_path / "jupyter-lab"
    program.write_text("#!/bin/sh\necho unknown option sock\nexec sleep 60\n")
    program.chmod(0o755)
    (tmp_path / ".profile").write_text(f"PATH={tmp_path}:$PATH\n")
    spec, report = tmp_path / "spec", tmp_path / "report"
    spec.write_text(json.dumps({"token": "t", "public_key": "k", "base_url": "/x/"}))
    fd = os.open(report, os.O_RDWR | os.O_CREAT)
    config = SshdConfig("", "", str(tmp_path), "", jupyter_path=str(spec), jupyter_report=fd)
    supervisor = jupyter.JupyterSupervisor(config, lambda: "/bin/sh", ChildWatcher())
    try:
        supervisor.reload()
        async with asyncio.timeout(30):
            while json.loads(report.read_text() or '{"state": null}')["state"] != "failed":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    finally:
        spec.write_text("")
        supervisor.reload()
        os.close(fd)
    reason = json.loads(report.read_text())["reason"]
    assert "JupyterLab 3 or later" in reason
    assert "unknown option sock" in reason
