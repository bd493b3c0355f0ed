"""`priority`: for operators."""

import json
from datetime import UTC, datetime

import pytest

from support.client.cli_process import Cli
from support.client.estimates import make_eta
from support.client.fake_api import FakeApi, Trouble

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("arguments", "number"), [(["10"], 10), (["0"], 0), (["-5"], -5), (["--", "-100"], -100)])
def test_it_is_set_and_the_new_place_told(cli: Cli, api: FakeApi, arguments: list[str], number: int) -> None:
    eta = make_eta(datetime.now(UTC), 40.5, 20.5, 50.5, 130.5)
    job = api.add(status="queued", queue_position=1, eta=eta, wait_reason="all is full")
    done = cli.run("priority", job.reservation_id[:8], *arguments)
    assert done.returncode == 0, done.stderr
    assert api.jobs[job.reservation_id].priority == number
    assert done.stdout.startswith(f"Priority of {job.reservation_id[:8]} is {number}: position 1, expected in about 4")
    [asked] = api.requests("POST", "/priority")
    assert asked.json == {"priority": number}


def test_json_is_the_apis_answer(cli: Cli, api: FakeApi) -> None:
    job = api.add(status="queued")
    answer = json.loads(cli.run("priority", job.reservation_id, "7", "--json").stdout)
    assert (answer["reservation_id"], answer["priority"]) == (job.reservation_id, 7)


def test_others_than_operators_are_refused_in_words(cli: Cli, api: FakeApi) -> None:
    job = api.add(status="queued")
    api.operator_asks = False
    done = cli.run("priority", job.reservation_id, "7")
    assert done.returncode == 3
    assert done.stderr == "Error: only operators may set priorities. Ask an operator of your system.\n"
    refusal = json.loads(cli.run("priority", job.reservation_id, "7", "--json").stderr)
    assert (refusal["code"], refusal["status"], refusal["exit_code"]) == ("forbidden", 403, 3)


@pytest.mark.parametrize("arguments", [[], ["deadbeef"], ["deadbeef", "101"], ["deadbeef", "x"], ["deadbeef", "--x"]])
def test_what_is_no_priority_is_never_sent(cli: Cli, api: FakeApi, arguments: list[str]) -> None:
    done = cli.run("priority", *arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert not api.asked


def test_an_unknown_id_is_not_found(cli: Cli) -> None:
    assert cli.run("priority", "deadbeef", "5").returncode == 4


def test_it_is_said_again_after_a_cut_connection(cli: Cli, api: FakeApi) -> None:
    """Twice the same is the same."""
    job = api.add(status="queued")
    api.fail_next("/priority", Trouble(cut_after=True))
    assert cli.run("priority", job.reservation_id, "5").returncode == 0
    assert api.jobs[job.reservation_id].priority == 5
