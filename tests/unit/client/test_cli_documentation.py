"""docs/cli.md keeps up with the program."""

import re
from pathlib import Path

import click

from gpudev.cli import overview
from gpudev.cli.app import root
from gpudev.cli.config import PREFERENCE_NAMES
from gpudev.cli.exit_codes import ExitCode

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")


def test_every_exit_code_is_explained_and_no_other() -> None:
    explained = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)}
    assert explained == {int(code) for code in ExitCode}


def test_every_command_is_listed() -> None:
    for name in overview.SUMMARIES:
        assert re.search(rf"`{name}\b", PAGE), name


def test_every_setting_is_listed() -> None:
    for name in PREFERENCE_NAMES:
        assert f"| `{name}` |" in PAGE


def test_every_option_of_reserve_is_listed() -> None:
    reserve = root.get_command(click.Context(root), "reserve")
    assert reserve is not None
    options = {option for parameter in reserve.params for option in parameter.opts if option.startswith("--")}
    for option in options - {"--gpu-type", "--help"}:
        assert option in PAGE, option
