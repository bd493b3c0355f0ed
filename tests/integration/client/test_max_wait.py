"""`gpu-dev reserve --max-wait`."""

from datetime import UTC, datetime, timedelta

import click
import pytest

from gpudev.cli.options import DURATION
from support.client.cli_process import Cli
from support.client.fake_api import FakeApi


@pytest.mark.parametrize(("text", "hours"), [
    ("2h", 2), ("90m", 1.5), ("1d", 24), ("0.5", 0.5), ("3", 3), (" 2H ", 2), ("1.5h", 1.5),
])  # fmt: skip
def test_lengths_of_time(text: str, hours: float) -> None:
    assert DURATION.convert(text, None, None) == pytest.approx(hours)


@pytest.mark.parametrize("text", ["", "0", "0h", "-1h", "2 weeks", "h", "30m1h", "nan", "inf", "1e5", "9" * 400])
def test_what_is_none(text: str) -> None:
    with pytest.raises(click.BadParameter, match="invalid duration"):
        DURATION.convert(text, None, None)


@pytest.mark.slow
def test_the_longest_wait_is_sent_and_told(cli: Cli, api: FakeApi) -> None:
    api.on_submit = lambda api, job: api.change(
        job.reservation_id, status="queued", wait_until=datetime.now(UTC) + timedelta(hours=2)
    )
    done = cli.run("reserve", "--max-wait", "2h", "--no-wait")
    assert done.returncode == 0, done
    [asked] = api.requests("POST", "/submit")
    assert asked.json["max_wait_hours"] == 2
    assert "Waits until" in cli.run("status", *api.jobs).stdout
