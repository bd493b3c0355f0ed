"""ssh through HTTPS on one machine, by the real clients: what people and their editors do there."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.system import System

pytestmark = pytest.mark.slow
Job = dict[str, Any]


@pytest.fixture(scope="module")
def job(system: System) -> Iterator[Job]:
    reserved = system.ask("reserve", "--gpus", "1", "--hours", "1", "--disk", "none", "--yes")
    yield reserved
    system.run("cancel", reserved["job_id"], "--yes")


def proxied(system: System, job: Job) -> list[str]:
    """ssh options that go through the proxy, and could not go anywhere else."""
    command = f"{sys.executable} -m gpudev.cli proxy-command {job['job_id']}"
    return [*system.ssh_options(job), "-o", f"ProxyCommand={command}"]


def ssh(system: System, job: Job, *options: str) -> list[str]:
    return ["ssh", *proxied(system, job), *options, "dev@nowhere.invalid"]


def run(system: System, command: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, env=system.environment, check=False, capture_output=True, text=True, timeout=90, **more
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_a_command_runs_with_its_input_its_output_and_its_exit_code(system: System, job: Job) -> None:
    done = subprocess.run(
        [*ssh(system, job), "cat; echo oh >&2; exit 3"],
        input="hello",
        env=system.environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "hello", "oh\n")


def test_files_go_both_ways_by_scp_and_sftp(system: System, job: Job, tmp_path: Path) -> None:
    content = bytes(range(256)) * 40_000
    (tmp_path / "up").write_bytes(content)
    options = proxied(system, job)
    run(system, ["scp", "-q", *options, str(tmp_path / "up"), "dev@nowhere.invalid:big"])
    (tmp_path / "orders").write_text(f"get big {tmp_path / 'down'}\nrename big bigger\n")
    run(system, ["sftp", "-q", *options, "-b", str(tmp_path / "orders"), "dev@nowhere.invalid"])
    assert (tmp_path / "down").read_bytes() == content
    assert run(system, [*ssh(system, job), "stat -c %s bigger"]).stdout == f"{len(content)}\n"
