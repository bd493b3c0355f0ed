"""The SDK's reference is what the code says, and its page names what there is."""

import re

import gpudev
from support.client import sdk_reference
from support.client.sdk_examples import EXAMPLES
from support.paths import ROOT


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
