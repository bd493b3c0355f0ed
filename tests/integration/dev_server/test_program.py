"""The program itself: its own tests, how it is compiled, and for what."""

import subprocess
from pathlib import Path

import pytest

from support.ssh.dev_server_program import SOURCES

pytestmark = pytest.mark.slow

GO = SOURCES.parents[1] / "tools" / "go"
X86_64, AARCH64 = 62, 183


def go(*arguments: str) -> str:
    done = subprocess.run([GO, *arguments], cwd=SOURCES, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_rules_hold(program: Path) -> None:
    told = go("test", "./...")
    assert told.count("ok  \t") >= 6, told


def test_it_is_formatted_and_vetted(program: Path) -> None:
    assert go("vet", "./...") == ""
    gofmt = Path(go("env", "GOROOT").strip()) / "bin" / "gofmt"
    done = subprocess.run([gofmt, "-l", "."], cwd=SOURCES, capture_output=True, text=True, check=True)
    assert done.stdout == ""


def test_its_modules_are_locked(program: Path) -> None:
    go("mod", "verify")
    assert go("mod", "tidy", "-diff") == ""


@pytest.mark.parametrize(("architecture", "machine"), [("amd64", X86_64), ("arm64", AARCH64)])
def test_it_is_compiled_for_both_architectures(program: Path, tmp_path: Path, architecture: str, machine: int) -> None:
    output = tmp_path / "deep" / "gpudev-devserver"
    subprocess.run([SOURCES / "build", output, architecture], check=True, capture_output=True, timeout=600)
    header = output.read_bytes()[:20]
    assert header[:4] == b"\x7fELF"
    assert int.from_bytes(header[18:20], "little") == machine
    assert [path.name for path in output.parent.iterdir()] == ["gpudev-devserver"]
