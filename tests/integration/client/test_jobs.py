"""`list`, `status`, `cancel`, `extend` and `avail`."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpudev.wire import codec
from gpudev.wire.reservations import NodeShareView
from support.client.cli_process import Cli
from support.client.fake_api import FakeApi, Trouble, make_type

pytestmark = pytest.mark.slow


def test_list_shows_what_waits_and_runs_newest_first(cli: Cli, api: FakeApi) -> None:
    soon = datetime.now(UTC) + timedelta(minutes=45)
    first = api.add(status="active", name="training")
    api.add(status="expired")
    second = api.add(status="queued", queue_position=2, estimated_start_at=soon, gpu_type="h100", gpu_count=8)
    done = cli.run("list")
    assert done.returncode == 0, done.stderr
    header, *rows = done.stdout.splitlines()
    assert header.split() == ["ID", "STATUS", "GPUS", "TYPE", "NAME", "CREATED", "NOW"]
    assert [row.split()[:5] for row in rows] == [
        [second.reservation_id[:8], "queued", "8", "h100", "-"],
        [first.reservation_id[:8], "active", "2", "a100", "training"],
    ]
    assert "position 2, starts about" in rows[0]
    assert "(in 45 min)" in rows[0]
    assert "(in 4 h)" in rows[1]
    assert rows[0].index("h100") == rows[1].index("a100"), "columns stand under each other"


def test_list_all_shows_those_that_have_ended_too(cli: Cli, api: FakeApi) -> None:
    api.add(status="failed", failure_reason="the disk is gone")
    assert "no live reservations" in cli.run("list").stdout
    assert "the disk is gone" in cli.run("list", "--all").stdout


def test_list_takes_filters(cli: Cli, api: FakeApi) -> None:
    api.add(status="active", gpu_type="t4", name="one")
    api.add(status="queued", gpu_type="t4", name="two")
    api.add(status="queued", gpu_type="a100", name="three")
    assert "two" in cli.run("list", "--status", "queued", "--type", "t4").stdout
    assert {"one", "three"} & set(cli.run("list", "--status", "queued", "--type", "t4").stdout.split()) == set()
    assert "no matching reservations" in cli.run("list", "--status", "failed").stdout
    both = cli.run("list", "--status", "queued", "--status", "active").stdout
    assert {"one", "two", "three"} <= set(both.split())


def test_list_without_any_says_what_to_do(cli: Cli) -> None:
    done = cli.run("list")
    assert done.returncode == 0
    assert "gpu-dev reserve" in done.stdout


def test_list_json_is_the_apis_answer(cli: Cli, api: FakeApi) -> None:
    job = api.add(status="active", name="日本")
    done = cli.run("list", "--json")
    assert json.loads(done.stdout) == {"jobs": [codec.encode_model(job)], "next_cursor": None}
    assert done.stderr == ""


def test_list_puts_pages_together_up_to_the_limit(cli: Cli, api: FakeApi) -> None:
    for number in range(450):
        api.add(status="active", name=f"job{number}")
    answer = json.loads(cli.run("list", "--json", "--limit", "430").stdout)
    assert [job["name"] for job in answer["jobs"]] == [f"job{number}" for number in range(449, 19, -1)]
    assert answer["next_cursor"] is not None
    assert len(api.requests("GET", "/v1/jobs")) == 3
    assert "Only the first 50 are shown" in cli.run("list").stdout


def test_status_shows_everything_about_a_waiting_one(cli: Cli, api: FakeApi) -> None:
    soon = datetime.now(UTC) + timedelta(minutes=45)
    job = api.add(status="queued", queue_position=3, estimated_start_at=soon, wait_reason="all is full", name="mine")
    text = cli.run("status", job.reservation_id).stdout
    for part in (job.reservation_id, "(mine)", "queued", "2 x a100", "Position     3", "(in 45 min)", "all is full"):
        assert part in text


def test_status_shows_everything_about_an_active_one(cli: Cli, api: FakeApi) -> None:
    nodes = [NodeShareView(rank=0, node="node-7", gpu_count=2, gpu_indices=[0, 1])]
    job = api.add(status="active", nodes=nodes, disk_name="data", warning="/home/dev is scratch space")
    text = cli.run("status", job.reservation_id[:8]).stdout
    for part in ("active", "node-7", "data", "ssh -p 31234 dev@127.0.0.1", "gpu-dev connect", "(in 4 h)", "is scratch"):
        assert part in text


def test_status_shows_why_one_failed_and_whether_it_is_freed(cli: Cli, api: FakeApi) -> None:
    job = api.add(status="failed", failure_reason="the disk is gone", reservation_ended=datetime.now(UTC))
    text = cli.run("status", job.reservation_id[:8]).stdout
    assert "the disk is gone" in text
    assert "not yet, teardown in progress" in text


def test_status_with_events_shows_the_history(cli: Cli, api: FakeApi) -> None:
    live = api.add()
    api.change(live.reservation_id, "waits at position 1", status="queued")
    api.change(live.reservation_id, "placed on node-7", status="preparing")
    for job_id in (live.reservation_id[:8], None):
        text = cli.run("status", *([job_id] if job_id else []), "--events").stdout
        assert text.index("it was submitted") < text.index("waits at position 1") < text.index("placed on node-7")


def test_a_history_that_comes_slowly_is_shown_to_its_end(cli: Cli, api: FakeApi) -> None:
    live = api.add()
    api.change(live.reservation_id, "waits at position 1", status="queued")
    api.line_takes_seconds = 0.5
    done = cli.run("status", live.reservation_id, "--events", "--json")
    assert [event["message"] for event in json.loads(done.stdout)["events"]] == [
        "it was submitted",
        "waits at position 1",
    ]


def test_status_with_events_of_an_ended_one_comes_to_an_end(cli: Cli, api: FakeApi) -> None:
    job = api.add()
    api.change(job.reservation_id, "the disk is gone", status="failed")
    done = cli.run("status", job.reservation_id[:8], "--events", "--json")
    events = json.loads(done.stdout)["events"]
    assert [event["message"] for event in events] == ["it was submitted", "the disk is gone"]


def test_times_are_shown_in_the_readers_zone_and_json_is_left_alone(cli: Cli, api: FakeApi) -> None:
    at = datetime(2026, 1, 2, 23, 30, tzinfo=UTC)
    job = api.add(status="expired", created_at=at)
    shown = cli.run("status", job.reservation_id, env={"TZ": "JST-9"}).stdout
    assert "2026-01-03 08:30 JST" in shown
    raw = cli.run("status", job.reservation_id, "--json", env={"TZ": "JST-9"}).stdout
    assert json.loads(raw)["created_at"] == "2026-01-02T23:30:00Z"


def test_the_only_one_need_not_be_named(cli: Cli, api: FakeApi) -> None:
    none = cli.run("status")
    assert none.returncode == 4
    assert "gpu-dev reserve" in none.stderr
    waiting = api.add(status="queued")
    assert waiting.reservation_id in cli.run("status").stdout
    running = api.add(status="active")
    assert running.reservation_id in cli.run("status").stdout, "an active one goes before one that waits"
    other = api.add(status="active")
    several = cli.run("status")
    assert several.returncode == 2
    assert running.reservation_id[:8] in several.stderr
    assert other.reservation_id[:8] in several.stderr


def test_ids_may_be_shortened_while_unique(cli: Cli, api: FakeApi) -> None:
    one = api.add(reservation_id="3f2a9c1e-1111-4000-8000-000000000000")
    two = api.add(reservation_id="3f2a9c1e-2222-4000-8000-000000000000")
    assert one.reservation_id in cli.run("status", "3f2a9c1e-1").stdout
    assert two.reservation_id in cli.run("status", "3F2A9C1E2").stdout
    ambiguous = cli.run("status", "3f2a")
    assert ambiguous.returncode == 5
    assert "3f2a9c1e" in ambiguous.stderr


@pytest.mark.parametrize("command", [["status"], ["cancel", "--yes"], ["extend", "--hours", "1"], ["connect"]])
def test_an_unknown_id_is_not_found(cli: Cli, command: list[str]) -> None:
    done = cli.run(*command, "deadbeef")
    assert done.returncode == 4
    assert done.stderr.count("\n") == 1
    assert "gpu-dev list --all" in done.stderr


@pytest.mark.parametrize("job_id", ["abc", "zzzzzzzz", "abcd efgh", "a" * 40])
@pytest.mark.parametrize("command", [["status"], ["cancel", "--yes"], ["extend", "--hours", "1"], ["connect"]])
def test_what_can_only_be_a_name_is_never_sent(cli: Cli, api: FakeApi, command: list[str], job_id: str) -> None:
    done = cli.run(*command, job_id)
    assert done.returncode == 4
    assert f"no reservation with the id or name {job_id!r}" in done.stderr
    assert {asked.path for asked in api.asked} == {"/v1/jobs"}


@pytest.mark.parametrize("job_id", ["", "../health", "abcd/events", "a" * 64, b"\xff\xff\xff\xff"])
@pytest.mark.parametrize("command", [["status"], ["cancel", "--yes"], ["extend", "--hours", "1"], ["connect"]])
def test_what_is_no_id_is_never_sent(cli: Cli, api: FakeApi, command: list[str], job_id: str | bytes) -> None:
    done = cli.run(*command, job_id)
    assert done.returncode == 2
    assert "invalid reservation id" in done.stderr
    assert not api.asked


def test_cancel_ends_every_one_that_is_named(cli: Cli, api: FakeApi) -> None:
    jobs = [api.add(status="active"), api.add(status="queued")]
    done = cli.run("cancel", *(job.reservation_id[:8] for job in jobs))
    assert done.returncode == 0, done.stderr
    assert [job.status for job in api.jobs.values()] == ["cancelled", "cancelled"]
    assert done.stdout.count("Cancelled: ") == 2


def test_cancel_goes_on_after_a_failure_and_reports_it(cli: Cli, api: FakeApi) -> None:
    job = api.add(status="active")
    done = cli.run("cancel", "deadbeef", job.reservation_id[:8], "feedbeef")
    assert done.returncode == 4
    assert api.jobs[job.reservation_id].status == "cancelled"
    assert "deadbeef" in done.stderr
    assert "feedbeef" in done.stderr


def test_cancel_json_is_one_answer_per_line(cli: Cli, api: FakeApi) -> None:
    jobs = [api.add(status="active"), api.add(status="queued")]
    done = cli.run("cancel", "--json", *(job.reservation_id for job in jobs))
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["status"] for answer in answers] == ["cancelled", "cancelled"]


def test_cancel_json_says_nothing_where_there_is_nothing_to_cancel(cli: Cli) -> None:
    done = cli.run("cancel", "--all", "--yes", "--json")
    assert (done.returncode, done.stdout) == (0, "")
    assert "no live reservations" in cli.run("cancel", "--all", "--yes").stdout


def test_cancel_json_reports_every_failure_as_json(cli: Cli) -> None:
    done = cli.run("cancel", "--json", "deadbeef", "feedbeef")
    assert done.returncode == 4
    assert [json.loads(line)["exit_code"] for line in done.stderr.splitlines()] == [4, 4]


def test_cancel_all_wants_a_yes_where_nobody_can_be_asked(cli: Cli, api: FakeApi) -> None:
    api.add(status="active")
    assert cli.run("cancel", "--all").returncode == 2
    assert not api.requests("POST", "/cancel")
    assert cli.run("cancel", "--all", "--yes").returncode == 0
    assert len(api.requests("POST", "/cancel")) == 1


@pytest.mark.parametrize("arguments", [[], ["--all", "deadbeef"]])
def test_cancel_wants_to_know_which(cli: Cli, api: FakeApi, arguments: list[str]) -> None:
    assert cli.run("cancel", "--yes", *arguments).returncode == 2
    assert not api.asked


def test_cancel_is_tried_again_after_a_cut_connection(cli: Cli, api: FakeApi) -> None:
    job = api.add(status="active")
    api.fail_next("/cancel", Trouble(cut_after=True))
    assert cli.run("cancel", job.reservation_id).returncode == 0


def test_cancelling_what_has_ended_is_refused_with_the_reason(cli: Cli, api: FakeApi) -> None:
    job = api.add(status="expired")
    done = cli.run("cancel", job.reservation_id)
    assert done.returncode == 5
    assert f"reservation {job.reservation_id[:8]} ended already" in done.stderr
    assert "(expired)" in done.stderr


def test_extend_says_the_new_end(cli: Cli, api: FakeApi) -> None:
    job = api.add(status="active")
    done = cli.run("extend", job.reservation_id[:8], "--hours", "1.5")
    assert done.returncode == 0, done.stderr
    assert "(in 5 h 30 min)" in done.stdout
    [asked] = api.requests("POST", "/extend")
    assert asked.json == {"extension_hours": 1.5}


def test_extend_is_never_said_twice(cli: Cli, api: FakeApi) -> None:
    """After a cut connection nobody knows whether the hours were added; adding them again would be wrong."""
    job = api.add(status="active")
    api.fail_next("/extend", Trouble(cut_after=True))
    done = cli.run("extend", job.reservation_id, "--hours", "1")
    assert done.returncode == 7
    assert len(api.requests("POST", "/extend")) == 1
    assert f"gpu-dev status {job.reservation_id[:8]}" in done.stderr


def test_extending_what_does_not_run_is_refused(cli: Cli, api: FakeApi) -> None:
    job = api.add(status="queued")
    done = cli.run("extend", job.reservation_id, "--hours", "1")
    assert done.returncode == 5
    assert "only an active reservation" in done.stderr


@pytest.mark.parametrize("arguments", [[], ["--hours", "0"], ["--hours", "nan"], ["--hours", "x"]])
def test_extend_wants_hours(cli: Cli, api: FakeApi, arguments: list[str]) -> None:
    assert cli.run("extend", "deadbeef", *arguments).returncode == 2
    assert not api.asked


def test_avail_shows_what_is_free_and_the_wait_for_the_rest(cli: Cli, api: FakeApi) -> None:
    api.types = [
        make_type("a100", available_gpus=3, max_reservable=2),
        make_type(
            "h100",
            available_gpus=0,
            queue_length=4,
            estimated_wait_minutes=90,
            latest_wait_minutes=150,
            wait_reason="0 of 1 GPU free on any h100 node",
            simulated=False,
        ),
        make_type("b200", available_gpus=0, estimated_wait_minutes=None, latest_wait_minutes=None),
        make_type("t4", total_cluster_gpus=0, running_instances=0),
        make_type("cpu-x86", total_cluster_gpus=3, available_gpus=3),
    ]
    done = cli.run("avail")
    rows = {row.split()[0]: row for row in done.stdout.splitlines()}
    assert rows["a100"].split()[1:7] == ["3", "8", "2", "0", "none", "none"]
    assert rows["h100"].endswith("  4        1 h 30 min  2 h 30 min  the h100")
    assert rows["h100:"] == "h100: 0 of 1 GPU free on any h100 node"
    assert "a100:" not in rows, "what need not wait needs no reason"
    assert "simulated" in rows["a100"]
    assert "simulated" not in rows["h100"]
    assert "unknown" in rows["b200"]
    assert "t4" not in rows
    assert "--gpus 0" in done.stdout
    assert "t4" in cli.run("avail", "--all").stdout


def test_avail_json_is_the_apis_answer(cli: Cli, api: FakeApi) -> None:
    answer: dict[str, Any] = json.loads(cli.run("avail", "--json").stdout)
    assert answer == {"gpu_types": codec.encode_model(api.types)}


def test_avail_shows_one_type_alone(cli: Cli, api: FakeApi) -> None:
    api.types = [make_type("a100"), make_type("h100"), make_type("t4", total_cluster_gpus=0, running_instances=0)]
    assert [row.split()[0] for row in cli.run("avail", "--type", "h100").stdout.splitlines()] == ["TYPE", "h100"]
    assert "t4" in cli.run("avail", "--type", "t4").stdout, "whoever names one wants to see it"
    answer = json.loads(cli.run("avail", "--type", "h100", "--json").stdout)
    assert answer == {"gpu_types": [codec.encode_model(api.types[1])]}
    done = cli.run("avail", "--type", "h200")
    assert done.returncode == 4
    assert "a100, h100, t4" in done.stderr


def test_avail_without_nodes_says_so(cli: Cli, api: FakeApi) -> None:
    api.types = []
    done = cli.run("avail")
    assert done.returncode == 0
    assert "No GPU type has nodes" in done.stdout
