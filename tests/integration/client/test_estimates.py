"""What those who wait are told: both starts, the stated error and the reason, by every command alike."""

import json
import re
from datetime import UTC, datetime

import pytest

from gpudev.wire.cluster import ClosedNode
from gpudev.wire.reservations import JobView
from support.client.cli_process import Cli
from support.client.estimates import make_eta
from support.client.fake_api import FakeApi, make_type

pytestmark = pytest.mark.slow

REASON = "2 of 8 GPUs free on any h100 node; 2 requests ahead; first fit when reservation 3f2a9c1e ends"
SOON = (40.5, 20.5, 90.5, 130.5)


def wait_in_line(api: FakeApi) -> JobView:
    now = datetime.now(UTC)
    eta = make_eta(now, *SOON)
    return api.add(
        status="queued",
        gpu_type="h100",
        queue_position=3,
        eta=eta,
        estimated_start_at=eta.latest,
        estimated_wait_minutes=41,
        wait_reason=REASON,
    )


def queue(api: FakeApi, job: JobView) -> None:
    eta = make_eta(datetime.now(UTC), *SOON)
    api.change(job.reservation_id, status="queued", queue_position=3, eta=eta, wait_reason=REASON)


def only_job(api: FakeApi) -> JobView:
    [job] = api.jobs.values()
    return job


def test_list_tells_position_both_starts_and_the_reason_in_a_row(cli: Cli, api: FakeApi) -> None:
    job = wait_in_line(api)
    assert job.eta is not None
    [_, row] = cli.run("list").stdout.splitlines()
    latest = f"{job.eta.latest:%H:%M} UTC"
    assert re.search(
        r"position 3, expected in about 4[01] min \(2[01] min to 1 h 3[01] min\), at the latest (\d{4}-\d\d-\d\d )?"
        + f"{latest}; {re.escape(REASON)}$",
        row,
    )


def test_list_tells_all_of_it_on_a_terminal_of_80_columns(cli: Cli, api: FakeApi) -> None:
    wait_in_line(api)
    api.add(status="active", name="training")
    with cli.terminal("list", columns=80) as terminal:
        assert terminal.wait() == 0
        active, waiting = re.split(r"\n(?=\w)", terminal.text.strip())[1:]
        assert " ".join(active.split()).endswith("(in 4 h)")  # below, where the end is on another day
        place, *below = waiting.splitlines()
        assert place.rstrip().endswith("position 3")
        told = " ".join(line.strip() for line in below)
        assert told.startswith("expected in about 4")
        assert "at the latest" in told
        assert told.endswith(REASON)


def test_status_tells_each_on_a_line_of_its_own(cli: Cli, api: FakeApi) -> None:
    job = wait_in_line(api)
    lines = cli.run("status", job.reservation_id[:8]).stdout.splitlines()
    facts = {line[:13].strip(): line[13:] for line in lines}
    assert facts["Position"] == "3"
    assert re.fullmatch(r"in about 4[01] min, .* UTC \(80 %: 2[01] min to 1 h 3[01] min\)", facts["Expected"])
    assert re.fullmatch(r".*\d\d:\d\d UTC \(in 2 h 1[01] min\), if nobody leaves early", facts["Latest"])
    assert facts["Because"] == REASON
    assert "Estimate" not in facts
    assert "Priority" not in facts, "the usual one is not worth a line"


def test_status_fits_a_terminal_and_breaks_between_words(cli: Cli, api: FakeApi) -> None:
    job = wait_in_line(api)
    with cli.terminal("status", job.reservation_id[:8], columns=60) as terminal:
        assert terminal.wait() == 0
        lines = terminal.text.splitlines()
        at = next(index for index, line in enumerate(lines) if line.startswith("Because"))
        assert lines[at + 1].startswith(" " * 13)
        assert " ".join(" ".join(lines[at:]).split()) == f"Because {REASON}"


def test_status_does_not_hide_a_broken_promise(cli: Cli, api: FakeApi) -> None:
    job = api.add(status="queued", queue_position=1, eta=make_eta(datetime.now(UTC), 5, 2, 9, -10))
    text = cli.run("status", job.reservation_id[:8]).stdout
    assert re.search(r"Latest .* UTC, which has passed\n", text)


def test_status_of_one_that_cannot_be_promised_anything_says_why(cli: Cli, api: FakeApi) -> None:
    job = api.add(status="queued", queue_position=1, wait_reason="no h100 node is ready")
    text = cli.run("status", job.reservation_id[:8]).stdout
    assert "start not known yet" in text
    assert "no h100 node is ready" in text


def test_status_shows_a_priority_that_is_not_the_usual_one(cli: Cli, api: FakeApi) -> None:
    job = api.add(status="queued", priority=-5)
    assert "Priority     -5" in cli.run("status", job.reservation_id[:8]).stdout


def test_the_countdown_counts_to_the_expected_start_and_shows_the_promise(cli: Cli, api: FakeApi) -> None:
    api.on_submit = queue
    with cli.terminal("reserve", columns=80) as terminal:
        terminal.wait_for("position 3 in the queue", "Expected   in 0:40:", "Latest", "in 2:10:", "3f2a9c1e ends")
        assert re.search(r"Expected   in 0:40:\d\d \(80 %: 2[01] min to 1 h 3[01] min\)", terminal.text)
        told = " ".join(terminal.text.split())
        assert f"Because {REASON} Ctrl-C" in told, "a long reason goes on below"
        before = re.findall(r"in (0:40:\d\d)", terminal.text)
        while re.findall(r"in (0:40:\d\d)", terminal.text) == before:
            terminal.read_some()
        assert terminal.text.count("Expected") == 1, "it is drawn over itself"
        api.activate(only_job(api).reservation_id)
        assert terminal.wait() == 0


def test_lines_are_told_when_the_expected_start_moves_much_and_not_when_it_creeps(cli: Cli, api: FakeApi) -> None:
    told_at: list[int] = []

    def steps(api: FakeApi, job: JobView) -> None:
        api.wait_for(lambda: job.reservation_id in api.told, "the stream has begun")
        now = datetime.now(UTC)
        for expected in (60.5, 61.5, 62.5, 90.5, 30.5):
            eta = make_eta(now, expected, 20.5, 95.5, 130.5)
            change = {"status": "queued", "queue_position": 1, "eta": eta, "wait_reason": "all is full"}
            told_at.append(api.change(job.reservation_id, **change).version)
            api.wait_for(lambda: api.told[job.reservation_id] == told_at[-1], "it was told")
        api.activate(job.reservation_id)

    api.on_submit = steps
    lines = [line for line in cli.run("reserve").stdout.splitlines() if line.startswith("queued: ")]
    assert [re.findall(r"in about ([^(]*) \(", line)[0] for line in lines] == ["1 h", "1 h 30 min", "30 min"]
    assert len(told_at) == 5


def test_no_wait_tells_them_too(cli: Cli, api: FakeApi) -> None:
    eta = make_eta(datetime.now(UTC), *SOON)
    add = api.add
    api.add = lambda **changes: add(**changes, queue_position=3, eta=eta, wait_reason=REASON)  # type: ignore[method-assign]
    [told, *_] = cli.run("reserve", "--no-wait").stdout.splitlines()
    assert "pending: position 3, expected in about 4" in told
    assert told.endswith(REASON)


def test_a_server_of_the_version_before_is_understood(cli: Cli, api: FakeApi) -> None:
    job = wait_in_line(api)
    api.types = [make_type("a100", available_gpus=0, estimated_wait_minutes=90)]
    api.not_known_yet = {"eta", "priority", "latest_wait_minutes", "wait_reason"}
    status = cli.run("status", job.reservation_id[:8])
    assert status.returncode == 0, status.stderr
    assert re.search(r"Estimate     starts about .* UTC \(in 2 h 1[01] min\)", status.stdout)
    assert "position 3, starts about" in cli.run("list").stdout
    avail = cli.run("avail")
    assert avail.returncode == 0, avail.stderr
    assert re.search(r"^a100 .* 1 h 30 min  -  ", avail.stdout, re.MULTILINE)
    assert "eta" not in json.loads(cli.run("status", job.reservation_id, "--json").stdout)


def test_a_server_of_the_version_before_can_be_waited_for(cli: Cli, api: FakeApi) -> None:
    api.not_known_yet = {"eta", "priority"}
    api.on_submit = queue
    with cli.terminal("reserve") as terminal:
        terminal.wait_for("position 3 in the queue", "Start      start not known yet")
        api.activate(only_job(api).reservation_id)
        assert terminal.wait() == 0


def test_avail_names_nodes_that_are_closed_and_why(cli: Cli, api: FakeApi) -> None:
    closed = [ClosedNode(name="node-1", reason="new \x1b[31mdriver")]
    closed += [ClosedNode(name=f"node-{number}", reason=None) for number in range(2, 8)]
    api.types = [make_type("a100", closed_nodes=closed)]
    said = cli.run("avail").stdout
    assert "\x1b" not in said
    assert re.search(r"^a100: node node-1 is closed for new work: new .*driver$", said, re.MULTILINE)
    assert re.search(r"^a100: node node-2 is closed for new work$", said, re.MULTILINE)
    assert "a100: 2 more nodes are closed for new work" in said
