"""How files of variables are read, and what else people bring is refused before it is sent."""

from pathlib import Path
from typing import Any

import pytest

from gpudev.cli import config
from gpudev.cli.commands.reservations.personalization import collect_personalization, parse_env_file
from gpudev.cli.exit_codes import CliError
from gpudev.sdk.errors import LocalError, UsageError


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("# only words\n\n  \n", {}),
        ("A=1\nB=two words \nC=\n", {"A": "1", "B": "two words", "C": ""}),
        ("export A=1\r\n  B=2\r\n", {"A": "1", "B": "2"}),
        ("A=a=b#c $HOME `id`", {"A": "a=b#c $HOME `id`"}),
        ("A='to the \\n letter' # why\nB=2", {"A": "to the \\n letter", "B": "2"}),
        ('A="one\\ntwo \\"three\\" \\\\ \\x \\$"', {"A": 'one\ntwo "three" \\ \\x $'}),
        ("KEY='-----BEGIN\nabc\n-----END'\nB=2", {"KEY": "-----BEGIN\nabc\n-----END", "B": "2"}),
        ("A=1\nA=2\n", {"A": "2"}),
    ],
)
def test_a_file_of_variables_is_read(text: str, found: dict[str, str]) -> None:
    assert parse_env_file(text, "x.env") == found


@pytest.mark.parametrize(
    ("text", "line"), [("A=1\nplanted\n", 2), ("=planted", 1), ("A-B=planted", 1), ("A=1\n\nB='planted\n", 3)]
)
def test_a_line_that_is_none_is_named_by_its_number_and_not_shown(text: str, line: int) -> None:
    with pytest.raises(UsageError) as refused:
        parse_env_file(text, "x.env")
    assert f"x.env, line {line}: " in refused.value.message
    assert "planted" not in refused.value.message


@pytest.mark.parametrize(
    ("brought", "refusal"),
    [
        ({"variables": ["PATH=planted"]}, UsageError),
        ({"variables": ["1X=planted"]}, UsageError),
        ({"variables": ["NOT_SET_HERE"]}, UsageError),
        ({"dotfiles": "https://ada:planted@github.com/x"}, UsageError),
        ({"env_files": [Path("/nonexistent")]}, LocalError),
        ({"startup_script": Path("/nonexistent")}, LocalError),
        ({"startup_script": Path("/dev/zero")}, LocalError),
    ],
)
def test_what_cannot_be_brought_is_refused_without_its_value(brought: dict[str, Any], refusal: type[Exception]) -> None:
    with pytest.raises(refusal) as refused:
        collect_personalization(**brought, environ={"HERE": "planted"})
    assert "planted" not in str(refused.value)


def test_later_files_win_and_variables_win_over_files(tmp_path: Path) -> None:
    for name, text in (("a", "A=1\nB=1\nC=1"), ("b", "B=2\nC=2")):
        (tmp_path / name).write_text(text)
    files = [tmp_path / "a", tmp_path / "b"]
    setup = collect_personalization(env_files=files, variables=["C", "D=4=4"], environ={"C": "3"})
    assert setup.environment == {"A": "1", "B": "2", "C": "3", "D": "4=4"}


@pytest.mark.parametrize(
    ("name", "value"),
    [("dotfiles", "https://planted@github.com/x"), ("startup-script", "/nonexistent"), ("env_file", "/nonexistent")],
)
def test_a_setting_that_cannot_work_is_refused(name: str, value: str) -> None:
    with pytest.raises(CliError) as refused:
        config.parse_preference(name, value)
    assert "planted" not in str(refused.value)
