"""The proxy as a process of its own on one machine: what a fault of it, or of the API, does to people's sessions."""

import subprocess
from typing import Any

import psutil
import pytest

from support.polling import eventually
from support.system.embedded_system import System
from support.system.shell import Shell, proxied_ssh

pytestmark = pytest.mark.slow


@pytest.fixture
def job(clean: System) -> dict[str, Any]:
    return clean.ask("reserve", "--gpus", "1", "--hours", "1", "--disk", "none", "--yes")


def connects(system: System, job: dict[str, Any]) -> bool:
    """Whether a new session can be opened."""
    done = subprocess.run(
        [*proxied_ssh(system, job), "echo in"],
        env=system.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode == 0 and done.stdout == "in\n"


def talks_to(system: System, part: str, port: int) -> bool:
    lines = psutil.Process(system.pid(part)).net_connections("tcp")
    return any(line.raddr and line.raddr.port == port for line in lines)


def test_a_session_is_the_proxys_and_outlives_the_api(clean: System, job: dict[str, Any]) -> None:
    with Shell(proxied_ssh(clean, job), clean.environment) as shell:
        assert shell.echo("before") == "before"
        assert talks_to(clean, "proxy", job["node_port"])
        assert not talks_to(clean, "api", job["node_port"])
        clean.kill("api")
        assert shell.echo("meanwhile") == "meanwhile"
        eventually(clean.ready, "the API is not ready again")
        assert shell.echo("after") == "after"
        assert connects(clean, job)


def test_after_the_proxy_was_killed_the_next_session_works(clean: System, job: dict[str, Any]) -> None:
    with Shell(proxied_ssh(clean, job), clean.environment) as shell:
        assert shell.echo("before") == "before"
        clean.kill("proxy")
        assert shell.process.wait(60) == 255
    assert clean.ready(), "the API does not depend on it"
    eventually(lambda: connects(clean, job), "no session could be opened")
