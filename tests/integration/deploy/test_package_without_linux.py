"""Where nobody tests: what macOS lacks is asked for first. support/without_linux says how far pretending goes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ELSEWHERE = ROOT / "tests" / "support" / "without_linux"
LOAD_ALL = """
import importlib, pkgutil, sys
import gpudev
assert sys.platform == "darwin"
names = [found.name for found in pkgutil.walk_packages(gpudev.__path__, "gpudev.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(len(names))
"""
SCRIPTS = [
    path
    for folder in (".", "tools", "infra", "images/server", "images/dev-server")
    for path in sorted((ROOT / folder).iterdir())
    if path.is_file() and path.read_bytes().startswith(b"#!/bin/sh")
]
NOT_ON_MACOS = ("flock", "setsid", "timeout", "nproc", "shuf", "tac", "sha256sum", "md5sum")


def python_elsewhere(*arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ELSEWHERE), str(ROOT / "src")])}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )


def test_every_module_can_be_loaded_where_linux_is_not() -> None:
    done = python_elsewhere("-W", "error", "-c", LOAD_ALL)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 300


@pytest.mark.slow
@pytest.mark.parametrize(
    "tests",
    [
        ("tests/contracts/cluster/test_local.py", "finds_them_again or death_is_seen or gone_may_be"),
        ("tests/integration/local/test_server_end.py", "names_the_signal or open_sessions_end or killed_everything"),
        ("tests/unit/local/test_rules.py", "TestProcesses or TestIsolation"),
    ],
    ids=lambda tests: tests[0].rpartition("/")[2],
)
def test_dev_servers_live_and_end_where_linux_is_not(tests: tuple[str, str]) -> None:
    done = python_elsewhere("-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", tests[0], "-k", tests[1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[root]" not in done.stdout + done.stderr


def test_there_are_scripts_to_look_at() -> None:
    assert {path.name for path in SCRIPTS} >= {"gpu-dev", "bootstrap", "with-test-tools", "build-image", "build"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_script_calls_what_macos_does_not_have(script: Path) -> None:
    text = "\n".join(line for line in script.read_text().splitlines() if not line.lstrip().startswith("#"))
    for program in NOT_ON_MACOS:
        if re.search(rf"(^|[|&;({{]|\bthen|\bdo|\belse)\s*{program}\s", text, re.MULTILINE):
            assert f"command -v {program} " in text, f"{program} is called without asking whether there is one"


def test_make_help_is_the_same_with_any_sed() -> None:
    """GNU's alone writes a tab for \\\\t."""
    recipe = (ROOT / "Makefile").read_text()
    assert not re.search(r"sed .*\\t", recipe)


@pytest.mark.parametrize(("soft", "hard", "then"), [(256, 4096, 1024), (256, 512, 512), (2000, 4096, 2000)])
def test_the_system_may_open_as_many_files_as_on_linux(soft: int, hard: int, then: int) -> None:
    code = (
        "import resource; from gpudev import rlimits; which = resource.RLIMIT_NOFILE;"
        f"resource.setrlimit(which, ({soft}, {hard}));"
        "rlimits.raise_open_files_limit(rlimits.DEFAULT_OPEN_FILES_LIMIT);"
        "print(resource.getrlimit(which))"
    )
    assert python_elsewhere("-c", code).stdout == f"({then}, {hard})\n"
