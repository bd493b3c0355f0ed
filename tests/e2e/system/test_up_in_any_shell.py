"""The system comes up whatever the shell that starts it was told."""

import subprocess

import pytest

from support.system.machine import Machine


@pytest.mark.slow
def test_it_comes_up_for_somebody_whose_files_nobody_else_may_read(machine: Machine) -> None:
    """Of root's, PostgreSQL must read some, and runs as another user."""
    up = subprocess.run(
        machine.command("up"),
        env=machine.environment,
        umask=0o077,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert up.returncode == 0, up.stdout + up.stderr
