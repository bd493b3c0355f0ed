"""How files of variables are read."""

import pytest

from gpudev.sdk.errors import UsageError
from gpudev.sdk.own_setup import parse_env_file


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
