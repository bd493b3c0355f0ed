"""What somebody at a terminal sees and is asked."""

import re
import time
from datetime import UTC, datetime, timedelta

import pytest

from gpudev.wire.reservations import JobView
from support.client.cli_process import Cli
from support.client.fake_api import FakeApi, Trouble, make_type

pytestmark = pytest.mark.slow

DOWN, ENTER = "\x1b[B", "\r"


def only_job(api: FakeApi) -> JobView:
    [job] = api.jobs.values()
    return job


def at_once(api: FakeApi, job: JobView) -> None:
    api.activate(job.reservation_id)


def queue(api: FakeApi, job: JobView) -> None:
    start = datetime.now(UTC) + timedelta(minutes=45, seconds=20)
    api.change(
        job.reservation_id,
        status="queued",
        queue_position=3,
        estimated_start_at=start,
        wait_reason="all 8 GPUs are in use",
    )


def test_the_countdown_shows_position_estimate_and_reason_and_ends_with_the_ssh_command(cli: Cli, api: FakeApi) -> None:
    api.on_submit = queue
    with cli.terminal("reserve", "--gpus", "2", "--hours", "4") as terminal:
        terminal.wait_for("position 3 in the queue", "in 0:45:", "all 8 GPUs are in use", "Ctrl-C stops waiting")
        short = only_job(api).reservation_id[:8]
        assert f"Reservation {short}: 2 x a100 for 4 h" in terminal.text
        api.change(only_job(api).reservation_id, queue_position=1)
        terminal.wait_for("position 1 in the queue")
        api.change(only_job(api).reservation_id, status="preparing", step="starting the ssh server")
        terminal.wait_for("Preparing  starting the ssh server")
        api.activate(only_job(api).reservation_id)
        assert terminal.wait() == 0
        lines = terminal.text.splitlines()
        assert lines[0].startswith("Ready: 2 x a100, ends ")
        assert lines[1:3] == [f"  gpu-dev connect {short}", f"  ssh gpu-dev-{short}"], "the countdown is wiped away"
        assert lines[3].startswith("Note: ~/.ssh/config ")
        assert len(lines) == 4


def test_the_countdown_counts(cli: Cli, api: FakeApi) -> None:
    api.on_submit = queue
    with cli.terminal("reserve") as terminal:
        terminal.wait_for("in 0:45:")
        [before] = re.findall(r"in (0:4\d:\d\d)", terminal.text)
        deadline = time.monotonic() + 20
        while re.findall(r"in (0:4\d:\d\d)", terminal.text) == [before]:
            assert time.monotonic() < deadline
            terminal.wait_for("position 3")
            terminal.read_some()
        [after] = re.findall(r"in (0:4\d:\d\d)", terminal.text)
        assert after < before
        assert terminal.text.count("position 3") == 1, "it is drawn over itself"


def test_what_is_ready_at_once_shows_no_countdown(cli: Cli, api: FakeApi) -> None:
    api.on_submit = at_once
    with cli.terminal("reserve") as terminal:
        assert terminal.wait() == 0
        assert "Ready: " in terminal.text


def test_ctrl_c_leaves_the_reservation_and_says_how_to_come_back(cli: Cli, api: FakeApi) -> None:
    api.on_submit = queue
    with cli.terminal("reserve") as terminal:
        terminal.wait_for("position 3")
        terminal.interrupt()
        assert terminal.wait() == 130
        short = only_job(api).reservation_id[:8]
        told = terminal.text.replace("\n", " ")
        assert f"gpu-dev status {short}" in told
        assert f"gpu-dev cancel {short}" in told
        assert "Traceback" not in terminal.text
        assert only_job(api).status == "queued"


def test_an_api_that_goes_away_for_a_while_is_shown_and_waited_for(cli: Cli, api: FakeApi) -> None:
    api.on_submit = queue
    with cli.terminal("reserve") as terminal:
        terminal.wait_for("position 3")
        away = Trouble(answer=(503, "text/plain", b"away"))
        api.fail_next("/events", *[away] * 2)
        api.fail_next(only_job(api).reservation_id, *[away] * 4)
        api.cut_streams()
        terminal.wait_for("Trouble", "retrying")
        api.activate(only_job(api).reservation_id)
        assert terminal.wait(60) == 0
        assert "Ready: " in terminal.text


def test_a_narrow_terminal_does_not_break_the_drawing(cli: Cli, api: FakeApi) -> None:
    api.on_submit = queue
    with cli.terminal("reserve", columns=30) as terminal:
        terminal.wait_for("position 3")
        api.change(only_job(api).reservation_id, queue_position=2)
        terminal.wait_for("position 2")
        assert terminal.text.count("Reservation ") == 1
        assert "position 3" not in terminal.text


def test_a_dumb_terminal_gets_plain_lines(cli: Cli, api: FakeApi) -> None:
    api.on_submit = at_once
    with cli.terminal("reserve", env={"TERM": "dumb"}) as terminal:
        assert terminal.wait() == 0
        assert b"\x1b" not in terminal.raw


def test_no_color_means_no_colour(cli: Cli, api: FakeApi) -> None:
    api.add(status="active")
    with cli.terminal("list") as terminal:
        assert terminal.wait() == 0
        assert b"\x1b[32m" in terminal.raw
    with cli.terminal("list", env={"NO_COLOR": "1"}) as terminal:
        assert terminal.wait() == 0
        assert b"\x1b" not in terminal.raw


def test_a_table_fits_the_terminal_and_a_pipe_gets_all_of_it(cli: Cli, api: FakeApi) -> None:
    reason = "all GPUs are in use " * 8
    job = api.add(status="queued", queue_position=1, wait_reason=reason.strip())
    with cli.terminal("list", columns=80) as terminal:
        assert terminal.wait() == 0
        header, row, *below = terminal.text.splitlines()
        assert row.startswith(f"{job.reservation_id[:8]}  queued  2     a100  -")
        assert row[header.index("NOW") :].startswith("position 1, ")
        assert all(line.startswith("    ") for line in below), "what has no room goes on below its row"
        assert " ".join(" ".join(below).split()).endswith(reason.strip())
    assert reason.strip() in cli.run("list").stdout.splitlines()[1]


def test_a_description_that_has_no_room_goes_on_below_its_row(cli: Cli, api: FakeApi) -> None:
    api.types = [make_type("a100", description="a very long description " * 5)]
    with cli.terminal("avail", columns=80) as terminal:
        assert terminal.wait() == 0
        _header, row, *below = terminal.text.splitlines()
        assert row.startswith("a100  8")
        assert all(line.startswith("    ") for line in below)
        assert " ".join(" ".join(below).split()) == "a very long description " * 5 + "(simulated)"


def test_a_name_cannot_drive_the_terminal(cli: Cli, api: FakeApi) -> None:
    api.add(status="active", name="evil\x1b]0;pwned\x07\x1b[2J\nrow")
    with cli.terminal("list") as terminal:
        assert terminal.wait() == 0
        assert b"pwned\x07" not in terminal.raw
        assert b"\x1b[2J" not in terminal.raw


def test_among_several_types_it_asks_which(cli: Cli, api: FakeApi) -> None:
    api.types = [make_type("a100"), make_type("h100", available_gpus=0), make_type("t4", total_cluster_gpus=0)]
    api.on_submit = at_once
    with cli.terminal("reserve") as terminal:
        screen = terminal.wait_for("Which GPU type?", "a100", "h100")
        assert "0 of 8 GPUs free" in screen
        assert "t4" not in screen, "a type without nodes is no choice"
        terminal.press(DOWN)
        terminal.press(ENTER)
        assert terminal.wait() == 0
    assert only_job(api).gpu_type == "h100"
    refused, granted = api.requests("POST", "/submit")
    assert refused.headers["Idempotency-Key"] != granted.headers["Idempotency-Key"], "it is another request"


def test_choosing_a_cpu_type_asks_for_no_gpus(cli: Cli, api: FakeApi) -> None:
    api.types = [make_type("a100"), make_type("h100"), make_type("cpu-x86")]
    api.on_submit = at_once
    with cli.terminal("reserve") as terminal:
        terminal.wait_for("cpu-x86")
        terminal.press(DOWN + DOWN)
        terminal.press(ENTER)
        assert terminal.wait() == 0
    assert (only_job(api).gpu_type, only_job(api).gpu_count) == ("cpu-x86", 0)


def test_ctrl_c_at_the_question_reserves_nothing(cli: Cli, api: FakeApi) -> None:
    api.types = [make_type("a100"), make_type("h100")]
    with cli.terminal("reserve") as terminal:
        terminal.wait_for("Which GPU type?", "h100")
        terminal.interrupt()
        assert terminal.wait() == 130
        assert "Traceback" not in terminal.text
    assert not api.jobs


def test_yes_asks_nothing(cli: Cli, api: FakeApi) -> None:
    api.types = [make_type("a100"), make_type("h100")]
    with cli.terminal("reserve", "--yes") as terminal:
        assert terminal.wait() == 5
        assert "name one of a100, h100" in terminal.text


@pytest.mark.parametrize(("key", "status", "words"), [("y", "cancelled", "Cancelled"), ("n", "active", "Nothing")])
def test_cancel_asks_first(cli: Cli, api: FakeApi, key: str, status: str, words: str) -> None:
    job = api.add(status="active")
    with cli.terminal("cancel", job.reservation_id[:8]) as terminal:
        terminal.wait_for(job.reservation_id[:8], "2 x a100", "Cancel this reservation and everything that runs there?")
        terminal.press(key + ENTER)
        assert terminal.wait() == 0
        assert words in terminal.text
    assert only_job(api).status == status


def test_cancel_all_shows_what_it_would_end(cli: Cli, api: FakeApi) -> None:
    jobs = [api.add(status="active"), api.add(status="queued"), api.add(status="expired")]
    with cli.terminal("cancel", "--all") as terminal:
        screen = terminal.wait_for("Cancel these 2 reservations")
        assert jobs[2].reservation_id[:8] not in screen
        terminal.press("y" + ENTER)
        assert terminal.wait() == 0
    assert [job.status for job in api.jobs.values()] == ["cancelled", "cancelled", "expired"]


def test_ctrl_c_at_the_cancel_question_cancels_nothing(cli: Cli, api: FakeApi) -> None:
    job = api.add(status="active")
    with cli.terminal("cancel", job.reservation_id[:8]) as terminal:
        terminal.wait_for("Cancel this reservation")
        terminal.interrupt()
        assert terminal.wait() == 130
    assert only_job(api).status == "active"


def test_a_key_that_is_typed_is_not_shown(cli: Cli, api: FakeApi) -> None:
    with cli.terminal("login", "--key-stdin", env={"GPU_DEV_API_KEY": None}) as terminal:
        terminal.wait_for("API key")
        terminal.press("gpudev_test_key" + ENTER)
        assert terminal.wait() == 0
        assert "gpudev_test_key" not in terminal.text
        assert "Logged in" in terminal.text


def test_errors_break_between_words_and_hints_stand_below(cli: Cli) -> None:
    with cli.terminal("status", "nobody-has-this-name", columns=40) as terminal:
        assert terminal.wait() == 4
        lines = terminal.text.splitlines()
    assert lines == [
        "Error: you have no reservation with the",
        "id or name 'nobody-has-this-name'.",
        "`gpu-dev list --all` shows your",
        "reservations.",
    ]
    assert b"\x1b[31mError:\x1b[0m" in terminal.raw
    assert b"\x1b[2m`gpu-dev list" in terminal.raw


def test_no_color_is_honoured_for_errors(cli: Cli) -> None:
    with cli.terminal("status", "nobody", env={"NO_COLOR": "1"}) as terminal:
        assert terminal.wait() == 4
    assert b"\x1b[31m" not in terminal.raw


def test_an_interrupt_is_no_error(cli: Cli, api: FakeApi) -> None:
    with cli.terminal("reserve") as terminal:
        terminal.wait_for("Ctrl-C stops waiting")
        terminal.interrupt()
        assert terminal.wait() == 130
        assert "Stopped waiting; reservation" in terminal.text
        assert "Error" not in terminal.text
    assert [job.status for job in api.jobs.values()] == ["pending"]


@pytest.mark.parametrize("columns", [45, 60, 110])
def test_a_narrow_terminal_loses_nothing(cli: Cli, api: FakeApi, columns: int) -> None:
    api.types = [make_type("a100", description="NVIDIA A100 80 GB")]
    with cli.terminal("avail", columns=columns) as terminal:
        assert terminal.wait() == 0
        lines = terminal.text.splitlines()
    shown = " ".join(" ".join(lines).split())
    assert "NVIDIA A100 80 GB" in shown
    assert "(simulated)" in shown


def test_a_narrow_terminal_shows_every_column_of_a_list(cli: Cli, api: FakeApi) -> None:
    api.add(
        status="cancelled",
        name="training-of-the-large-model",
        outcome="exit 17",
        command="python train.py --epochs 3",
        launched_at=datetime.now(UTC) - timedelta(minutes=3),
        reservation_ended=datetime.now(UTC),
    )
    with cli.terminal("list", "--all", columns=45) as terminal:
        assert terminal.wait() == 0
        shown = " ".join(terminal.text.split())
    for part in ("exit 17", "training-of-the-large-model", "ran: 3 min", "python train.py --epochs 3"):
        assert part in shown
