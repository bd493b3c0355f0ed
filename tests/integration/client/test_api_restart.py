"""An API on one machine that begins anew: whoever asks meanwhile waits for it, and is told where to look."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gpudev import GpuDev, Unreachable, paths
from gpudev.adapters.local.machine.processes import identify_self
from gpudev.embedded import supervised_processes
from gpudev.embedded.layout import Layout
from gpudev.sdk.client_session import ClientSession
from gpudev.sdk.http.api_client import RETRY_PAUSES


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Of a machine where a system was started and whose API does not answer."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
    folder = tmp_path / "state" / "run"
    folder.mkdir(parents=True)
    (folder / "system.json").write_text(json.dumps({"api_url": f"http://127.0.0.1:{port}"}))
    return {"HOME": str(tmp_path), "GPU_DEV_HOME": str(tmp_path / "state"), "GPU_DEV_API_KEY": "gpd_key"}


def test_it_looks_where_the_system_leaves_its_word(env: dict[str, str]) -> None:
    layout = Layout(Path(env["GPU_DEV_HOME"]))
    assert paths.supervisor_file(env) == layout.pid_file("supervisor")
    assert paths.system_file(env) == layout.system_file
    assert paths.log_dir(env) == layout.logs
    supervised_processes.write_pid_file(layout.pid_file("supervisor"), identify_self())
    assert waits_of(ClientSession(env=env)) > sum(RETRY_PAUSES)


def supervised_by(env: dict[str, str], text: str) -> ClientSession:
    (Path(env["GPU_DEV_HOME"]) / "run" / "supervisor.pid").write_text(text)
    return ClientSession(env=env)


def waits_of(session: ClientSession) -> float:
    return sum(session.new_client()._pauses)


def test_while_somebody_starts_it_again_it_is_waited_for(env: dict[str, str]) -> None:
    assert waits_of(supervised_by(env, f"{os.getpid()}\n1\nboot\n")) > 8.0


def test_where_nobody_does_it_is_told_soon(env: dict[str, str]) -> None:
    assert waits_of(ClientSession(env=env)) == sum(RETRY_PAUSES)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for text in (f"{gone.pid}\n1\nboot\n", "", "x\n", f"{2**70}\n"):
        assert waits_of(supervised_by(env, text)) == sum(RETRY_PAUSES)


def test_another_machines_api_is_nothing_that_we_start(env: dict[str, str]) -> None:
    supervised_by(env, f"{os.getpid()}\n1\nboot\n")
    assert waits_of(ClientSession("http://127.0.0.1:1", env=env)) == sum(RETRY_PAUSES)


@pytest.mark.parametrize(("is_kept", "words"), [(True, "is restarting"), (False, "`gpu-dev up` starts")])
def test_whoever_waited_in_vain_is_told_where_to_look(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch, is_kept: bool, words: str
) -> None:
    if is_kept:
        supervised_by(env, f"{os.getpid()}\n1\nboot\n")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    with pytest.raises(Unreachable) as refused:
        GpuDev().cluster.availability()
    assert words in refused.value.next_step
    assert (str(Path(env["GPU_DEV_HOME"]) / "logs") in refused.value.next_step) is is_kept
