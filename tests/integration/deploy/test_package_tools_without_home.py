"""The tools start where HOME is not set, as in a service or a bare container."""

import os
import pwd
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Everything the tools look for, so that they install nothing: each answers with its own name and HOME."""
    for name in ("ssh", "scp", "sftp", "go"):
        program = tmp_path / name
        program.write_text('#!/bin/sh\n[ "$*" = "env GOVERSION" ] && echo go1.26.1 || echo "$0 $HOME"\n')
        program.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("command", [("tools/with-test-tools", "ssh"), ("tools/go", "version")])
def test_a_tool_finds_the_home_that_nobody_told_it(programs: Path, command: tuple[str, ...]) -> None:
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "SSH_ONLY": "1"}
    done = subprocess.run(command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == pwd.getpwuid(os.getuid()).pw_dir
