"""`gpu-dev-server nodes …` as far as it needs no cluster: what makes no sense is refused before anybody is asked."""

import pytest
from click.testing import CliRunner

from gpudev.main import cli


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("refresh", "h100", "--scratch-too"), "--scratch-too requires --move"),
        (("refresh", "h100", "--warning", "-1"), "--warning"),
        (("refresh",), "Missing argument 'GROUP'"),
        (("clear", "n1", "--warning", "soon"), "--warning"),
        (("move",), "Missing argument 'RESERVATION'"),
        (("list", "n1"), "unexpected extra argument"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(arguments: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(cli, ["nodes", *arguments])
    assert done.exit_code == 2
    assert said in done.output
