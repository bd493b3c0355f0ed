"""The lock files are exact, hashed and agree; and nothing here names where packages are to be downloaded from."""

import re
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[3]
MACHINES = [("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"), ("darwin", "x86_64")]
LOCKS = ("server", "dev", "uv", "go", "jupyter")
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)([^\n]*(?:\n +--hash=\S+ *\\?)*)", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
# Written in two halves, so that this file does not find itself.
_PACKAGE_HOSTS = ("py" + "pi.org", "python" + "hosted.org", "registry." + "npmjs.org", "deb." + "debian.org")
_READ_AS_TEXT = 2_000_000


def pins(lock: str) -> dict[tuple[str, str], int]:
    """Name and version, and how many hashes it has."""
    text = (ROOT / "locks" / f"{lock}.txt").read_text()
    return {(name, version): len(_HASH.findall(rest)) for name, version, rest in _PIN.findall(text)}


def versions_on(lock: str, machine: dict[str, str]) -> list[tuple[str, str]]:
    """What is installed on such a machine."""
    lines = (ROOT / "locks" / f"{lock}.txt").read_text().splitlines()
    wanted = [Requirement(line.rstrip(" \\")) for line in lines if line and not line.startswith((" ", "#"))]
    here = [each for each in wanted if each.marker is None or each.marker.evaluate(machine)]
    return [(each.name, str(each.specifier).removeprefix("==")) for each in here]


def own_files() -> list[Path]:
    """What is in the repository, or would be."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=False
    )
    if listed.returncode == 0:
        names = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    else:  # not a clone: an unpacked archive
        folders = ("src", "tests", "docs", "tools", "locks", "bench")
        names = [*ROOT.glob("*"), *(path for folder in folders for path in (ROOT / folder).rglob("*"))]
    return [path for path in names if path.is_file() and path.stat().st_size < _READ_AS_TEXT]


@pytest.mark.parametrize("lock", LOCKS)
def test_every_version_is_exact_and_hashed(lock: str) -> None:
    found = pins(lock)
    assert found
    assert [pin for pin, hashes in found.items() if hashes == 0] == []
    lines = (ROOT / "locks" / f"{lock}.txt").read_text().splitlines()
    requirements = [line for line in lines if line and not line.startswith((" ", "#"))]
    assert len(requirements) == len(found), "every requirement is a pin"


def test_the_developers_lock_holds_the_very_versions_the_system_runs_on() -> None:
    server, dev = pins("server"), pins("dev")
    assert server.items() <= dev.items()


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize(("system", "processor"), MACHINES)
@pytest.mark.parametrize("lock", LOCKS)
def test_every_machine_gets_one_version_of_a_package(lock: str, system: str, processor: str, python: str) -> None:
    machine = {"python_version": python, "python_full_version": f"{python}.0", "implementation_name": "cpython"}
    found = versions_on(lock, machine | {"sys_platform": system, "platform_machine": processor, "os_name": "posix"})
    names = [name for name, _ in found]
    assert sorted(set(names)) == sorted(names)
    if lock in ("server", "dev"):
        newest_without_rust = dict(found)["cryptography"].startswith("48.")
        assert newest_without_rust == ((system, processor) == ("darwin", "x86_64")), "made there, it takes a compiler"


@pytest.mark.parametrize("lock", LOCKS)
def test_no_lock_holds_an_address_or_a_path(lock: str) -> None:
    text = (ROOT / "locks" / f"{lock}.txt").read_text()
    assert "://" not in text
    assert "--index-url" not in text
    assert not re.search(r"(^|\s)/\w", text), "a path of the machine it was made on"


def test_no_file_names_a_package_host() -> None:
    files = own_files()
    assert ROOT / "pyproject.toml" in files
    named = [
        f"{path.relative_to(ROOT)}: {host}"
        for path in files
        for host in _PACKAGE_HOSTS
        if host.encode() in path.read_bytes()
    ]
    assert named == []


def test_the_licence_is_the_apache_licence_word_for_word() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert text.strip().startswith("Apache License")
    assert "END OF TERMS AND CONDITIONS" in text
    assert len(text) == 11_358
