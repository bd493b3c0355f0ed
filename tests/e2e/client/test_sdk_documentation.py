"""The reference is what the code says, the page names what there is, and the examples do what they show."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import gpudev
from gpudev import GpuDev
from support.client import sdk_reference
from support.system.embedded_system import System

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = {
    "reserve_and_run.py": r"[\d,]+\nit's \$HOME\nit ended with 1: out of memory\ncancelled\n",
    "wait_with_progress.py": r"h100: \d of 8 free\n(?:pending|queued|preparing|active): (?s:.*)ready: ssh .*\n",
    "many_at_once.py": r"best: 0\.003 \(loss 0\.006\)\n",
    "results_on_a_disk.py": r"(?s:.*)accuracy 0\.93\n",
    "come_back_later.py": r"step 3 and exit code 0\nsubmitted\n(?s:.*)active\n",
}


def test_the_reference_is_up_to_date() -> None:
    same = sdk_reference.PAGE.read_text(encoding="utf-8") == sdk_reference.page()
    assert same, "run `.venv/bin/python tools/sdk-reference`"


def test_the_reference_has_every_method_and_every_error() -> None:
    text = sdk_reference.page()
    for name in ("client.reserve", "client.jobs.follow", "client.disks.clone", "client.stats.eta", "server.run"):
        assert f"### `{name}`" in text
    for name in gpudev.__all__:
        assert f"`{name}`" in text or name == "__version__", name
    assert "| `status` | `str` | pending, queued" in text


def test_completion_offers_what_can_be_imported() -> None:
    assert set(gpudev.__all__) <= set(dir(gpudev))


def test_the_page_shows_what_there_is() -> None:
    """Every call it shows exists."""
    page = (ROOT / "docs" / "sdk.md").read_text(encoding="utf-8")
    groups = {name.partition(".")[2]: kind for name, kind in sdk_reference.GROUPS}
    for group, method in re.findall(r"client\.(jobs|disks|users|jupyter|cluster|keys|stats)\.(\w+)\(", page):
        assert hasattr(groups[group], method)
    for name in re.findall(r"examples/(\w+\.py)", page):
        assert name in EXAMPLES


def test_every_example_is_tried() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(EXAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_an_example_does_what_it_shows(system: System, client: GpuDev, name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)],
        env=system.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(EXAMPLES[name], done.stdout), done.stdout
    assert client.jobs.list() == []
