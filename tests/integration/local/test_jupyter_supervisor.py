"""The supervisor of Jupyter in a dev server: whatever goes wrong, a request is answered, and the next one counts."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpudev.adapters.local.sshd import jupyter as jupyter_module
from gpudev.adapters.local.sshd.child_process import ChildWatcher
from gpudev.adapters.local.sshd.jupyter import JupyterSupervisor, jupyter_spec_to_text, parse_jupyter_report
from gpudev.adapters.local.sshd.sshd_config import SshdConfig
from gpudev.domain.sessions.addons import JUPYTER_ENVIRONMENT, JupyterSpec, JupyterState, JupyterStatus
from support.paths import SUPPORT
from support.polling import eventually_async

STUB = SUPPORT / "sessions" / "jupyter_stub.py"
REQUESTS = 15


@dataclass
class Supervised:
    supervisor: JupyterSupervisor
    home: Path
    spec_file: Path
    report: Path
    requests: int = 0

    def request(self) -> JupyterSpec:
        """As `gpu-dev jupyter enable`: every request has a new token."""
        self.requests += 1
        spec = JupyterSpec(f"token-{self.requests}", "ssh-ed25519 AAAA", "/base/")
        draft = self.spec_file.with_suffix(".new")
        draft.write_text(jupyter_spec_to_text(spec))
        draft.rename(self.spec_file)
        return spec

    async def until(self, spec: JupyterSpec, state: JupyterState) -> JupyterStatus:
        def reached() -> JupyterStatus | None:
            self.supervisor.reload()
            status = parse_jupyter_report(self.report.read_text(), spec)
            return status if status.state is state else None

        return await eventually_async(reached, every=0.02)

    def program(self) -> Path:
        return self.home / JUPYTER_ENVIRONMENT / "bin" / "jupyter-lab"

    def install(self) -> None:
        self.program().parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(STUB, self.program())
        self.program().chmod(0o755)


@pytest.fixture
def report_fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "report", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


@pytest.fixture
async def supervised(tmp_path: Path, report_fd: int) -> AsyncIterator[Supervised]:
    home, spec_file = tmp_path / "home", tmp_path / "spec"
    home.mkdir()
    config = SshdConfig("", "", str(home), "", jupyter_path=str(spec_file), jupyter_report=report_fd)
    children = ChildWatcher()
    found = Supervised(JupyterSupervisor(config, lambda: "/bin/bash", children), home, spec_file, tmp_path / "report")
    yield found
    spec_file.unlink(missing_ok=True)
    found.supervisor.reload()
    await eventually_async(lambda: not children._ended)


async def test_every_request_is_answered_however_often_it_was_missing_before(supervised: Supervised) -> None:
    for _ in range(REQUESTS):
        failed = await supervised.until(supervised.request(), JupyterState.FAILED)
        assert "gpu-dev jupyter enable --install" in str(failed.reason)
        supervised.install()
        await supervised.until(supervised.request(), JupyterState.READY)
        supervised.program().unlink()


async def test_what_nobody_expected_is_a_reason_and_the_next_request_starts_it(
    supervised: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(*_: object) -> str:
        raise LookupError("no such thing")

    supervised.install()
    with monkeypatch.context() as broken:
        broken.setattr(jupyter_module, "session_environment", break_down)
        failed = await supervised.until(supervised.request(), JupyterState.FAILED)
    assert failed.reason == "unexpected error (LookupError: no such thing)"
    await supervised.until(supervised.request(), JupyterState.READY)


async def test_a_report_that_a_full_disk_does_not_take_is_written_later(
    supervised: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervised.install()
    spec = supervised.request()
    with monkeypatch.context() as full:

        def refuse(*_: object) -> int:
            raise OSError(28, "No space left on device")

        full.setattr(os, "pwrite", refuse)

        def is_ready() -> bool:
            supervised.supervisor.reload()
            return supervised.supervisor.socket_path is not None

        await eventually_async(is_ready)
        assert supervised.report.read_text() == ""
    await supervised.until(spec, JupyterState.READY)


async def test_the_log_shows_that_it_was_requested(supervised: Supervised) -> None:
    await supervised.until(supervised.request(), JupyterState.FAILED)
    log = supervised.home / ".cache/gpu-dev/jupyter.log"
    first = log.read_text()
    assert first.startswith("gpu-dev: starting JupyterLab for request ")
    await supervised.until(supervised.request(), JupyterState.FAILED)
    assert log.read_text() not in ("", first)


async def test_a_named_pipe_in_place_of_the_log_stops_nothing(supervised: Supervised) -> None:
    log = supervised.home / ".cache/gpu-dev/jupyter.log"
    log.parent.mkdir(parents=True)
    os.mkfifo(log)
    async with asyncio.timeout(20):
        await supervised.until(supervised.request(), JupyterState.FAILED)
        supervised.install()
        await supervised.until(supervised.request(), JupyterState.READY)
    assert json.loads(supervised.report.read_text())["reason"] is None
