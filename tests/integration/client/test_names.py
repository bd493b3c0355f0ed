"""Reservations by name: wherever an id stands, a name does too."""

import json
from pathlib import Path

import pytest

from support.client.cli_process import Cli
from support.client.fake_api import FakeApi, Trouble

pytestmark = pytest.mark.slow


def test_a_name_stands_for_its_reservation(cli: Cli, api: FakeApi) -> None:
    api.add(status="active", name="other")
    job = api.add(status="active", name="training run")
    for text in ("training run", "gpu-dev-training-run", f"gpu-dev-{job.reservation_id[:8]}"):
        assert job.reservation_id in cli.run("status", text).stdout, text


def test_a_name_that_looks_like_an_id_is_found_after_the_ids(cli: Cli, api: FakeApi) -> None:
    named = api.add(status="active", name="cafe")
    assert named.reservation_id in cli.run("status", "cafe").stdout
    by_id = api.add(status="active", reservation_id="cafe0000-0000-4000-8000-000000000000")
    assert by_id.reservation_id in cli.run("status", "cafe").stdout


@pytest.mark.parametrize("name", ["Cafe", "1-2-3", "ab-1"])
def test_hex_digits_in_a_name_do_not_hide_it(cli: Cli, api: FakeApi, name: str) -> None:
    named = api.add(status="active", name=name)
    api.add(status="active")
    assert named.reservation_id in cli.run("status", name).stdout


def test_a_live_one_goes_before_those_that_have_ended_and_the_last_of_these_before_others(
    cli: Cli, api: FakeApi
) -> None:
    live = api.add(status="queued", name="sweep")
    api.add(status="expired", name="sweep")
    last = api.add(status="cancelled", name="sweep")
    assert live.reservation_id in cli.run("status", "sweep").stdout
    api.change(live.reservation_id, status="expired")
    assert last.reservation_id in cli.run("status", "sweep").stdout


def test_several_of_one_name_are_listed(cli: Cli, api: FakeApi) -> None:
    jobs = [api.add(status="active", name="sweep") for _ in range(2)]
    done = cli.run("cancel", "sweep")
    assert done.returncode == 2
    for job in jobs:
        assert job.reservation_id[:8] in done.stderr
    assert not api.requests("POST", "/cancel")


def test_one_can_be_picked_on_a_terminal(cli: Cli, api: FakeApi) -> None:
    api.add(status="active", name="one")
    second = api.add(status="active", name="two")
    with cli.terminal("status") as terminal:
        terminal.wait_for("Which reservation?", "one", "two")
        terminal.press("\r")
        terminal.wait_for(second.reservation_id)
        assert terminal.wait() == 0


def test_json_is_never_a_question(cli: Cli, api: FakeApi) -> None:
    for name in ("one", "two"):
        api.add(status="active", name=name)
    with cli.terminal("status", "--json") as terminal:
        assert terminal.wait() == 2
        assert "Which reservation?" not in terminal.text


def test_yes_is_no_answer_to_which_one(cli: Cli, api: FakeApi) -> None:
    for _ in range(2):
        api.add(status="active", name="sweep")
    with cli.terminal("cancel", "--yes", "sweep") as terminal:
        assert terminal.wait() == 2
        assert "Which reservation?" not in terminal.text
    assert not api.requests("POST", "/cancel")


def test_after_a_lost_answer_extend_names_what_was_typed(cli: Cli, api: FakeApi) -> None:
    api.add(status="active", name="training-run")
    api.fail_next("/extend", Trouble(cut_after=True))
    done = cli.run("extend", "training-run", "1h", env={"GPU_DEV_PATIENCE_SECONDS": "1"})
    assert done.returncode == 7, done.stderr
    assert "`gpu-dev status training-run`" in done.stderr


def test_commands_that_change_something_take_names(cli: Cli, api: FakeApi) -> None:
    job = api.add(status="active", name="training")
    assert cli.run("extend", "training", "1h30").returncode == 0
    assert cli.run("priority", "training", "5").returncode == 0
    assert cli.run("cancel", "training").returncode == 0
    assert [asked.path for asked in api.asked if asked.method == "POST"] == [
        f"/v1/jobs/{job.reservation_id}/{act}" for act in ("extend", "priority", "cancel")
    ]
    assert json.loads(api.requests("POST", "/extend")[0].body) == {"extension_hours": 1.5}


def test_an_unknown_name_is_not_found_and_a_command_gets_its_hint(cli: Cli, api: FakeApi) -> None:
    api.add(status="active")
    done = cli.run("connect", "nvidia-smi")
    assert done.returncode == 4
    assert "'nvidia-smi'" in done.stderr
    assert "comes after `--`" in done.stderr


@pytest.mark.parametrize("arguments", [["2h"], ["2"], ["--hours", "2h"]])
def test_the_only_one_is_extended_without_a_name(cli: Cli, api: FakeApi, arguments: list[str]) -> None:
    api.add(status="active")
    done = cli.run("extend", *arguments)
    assert done.returncode == 0, done.stderr
    assert "(in 6 h)" in done.stdout


@pytest.mark.parametrize(
    "arguments", [[], ["training"], ["training", "soon"], ["training", "2h", "3h"], ["training", "2h", "--hours", "1"]]
)
def test_extend_without_a_time_is_rejected(cli: Cli, api: FakeApi, arguments: list[str]) -> None:
    api.add(status="active", name="training")
    assert cli.run("extend", *arguments).returncode == 2
    assert not api.requests("POST", "/extend")


def test_what_has_ended_is_neither_asked_about_nor_called_cancelled(cli: Cli, api: FakeApi) -> None:
    job = api.add(status="active")
    assert cli.run("cancel", job.reservation_id[:8]).returncode == 0
    again = cli.run("cancel", job.reservation_id[:8])
    assert again.returncode == 0
    assert f"Nothing to cancel: reservation {job.reservation_id[:8]} ended already at" in again.stdout
    with cli.terminal("cancel", job.reservation_id[:8]) as terminal:
        assert terminal.wait() == 0
        assert "Nothing to cancel" in terminal.text
        assert "[y/N]" not in terminal.text


def test_one_that_ended_with_its_command_is_not_called_cancelled(cli: Cli, api: FakeApi) -> None:
    job = api.add(status="cancelled", exit_code=0, outcome="done")
    assert "(done)" in cli.run("cancel", job.reservation_id[:8]).stdout
    connected = cli.run("connect", job.reservation_id[:8])
    assert connected.returncode == 5
    assert "ended with its command (exit code 0)" in connected.stderr


def test_the_ssh_line_of_status_works_with_gpu_devs_own_key(cli: Cli, api: FakeApi, home: Path) -> None:
    api.add(status="active", name="training")
    assert "ssh -p 31234 dev@127.0.0.1" in cli.run("status").stdout
    (home / ".gpu-dev").mkdir(exist_ok=True)
    key = home / ".gpu-dev" / "id_ed25519"
    key.write_text("a private key")
    assert f"ssh -i {key} -p 31234 dev@127.0.0.1" in cli.run("status").stdout
    assert cli.run("ssh-config").returncode == 0
    assert "ssh gpu-dev-training" in cli.run("status").stdout


def test_cp_takes_the_options_of_other_programs_and_asks_for_a_missing_colon(cli: Cli, api: FakeApi) -> None:
    api.add(status="active", name="training")
    for option in ("-r", "-a", "-rp"):
        done = cli.run("cp", option, "nowhere", "training:")
        assert (done.returncode, done.stderr) == (8, "Error: no local file nowhere.\n")
    assert cli.run("cp", "nobody:a", "b").returncode == 4
    missing = cli.run("cp", ".ssh", "training")
    assert missing.returncode == 2
    assert "did you mean training: ?" in missing.stderr
