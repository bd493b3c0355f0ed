"""`gpu-dev disk`, and `reserve --disk` for a disk that is not there yet."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gpudev.cli.commands.disks import disk_formatting
from gpudev.wire.reservations import JobView
from support.client.cli_process import Cli
from support.client.fake_api import FakeApi, Trouble
from support.client.fake_disks import make_contents, make_line, make_operation, make_snapshot

pytestmark = pytest.mark.slow
PROBLEM = "application/problem+json"


def at_once(api: FakeApi, job: JobView) -> None:
    api.activate(job.reservation_id)


def refuse(api: FakeApi, path_end: str, status: int, code: str, detail: str) -> None:
    body = json.dumps({"status": status, "code": code, "detail": detail}).encode()
    api.fail_next(path_end, Trouble(answer=(status, PROBLEM, body)))


def test_disks_are_listed_with_how_each_is(cli: Cli, api: FakeApi) -> None:
    assert "You have no disks" in cli.run("disk", "list").stdout
    api.disks.add("data", size_gb=200, last_used=datetime.now(UTC), snapshot_count=3)
    api.disks.add("busy", state="in use", in_use=True, reservation_id="3f2a9c1e-0000-4000-8000-000000000000")
    gone = api.disks.add("gone", state="deleted", is_deleted=True, restorable_until=datetime(2030, 1, 2, tzinfo=UTC))
    done = cli.run("disk", "list")
    assert done.returncode == 0, done.stderr
    header, data, busy = done.stdout.splitlines()
    assert header.split() == ["NAME", "STATE", "SIZE", "LAST", "USED", "SNAPSHOTS", "NOW"]
    assert data.split()[:4] == ["data", "free", "200", "GB"]
    assert busy.endswith("in use by reservation 3f2a9c1e")
    everything = cli.run("disk", "list", "--deleted").stdout
    assert f"id {gone.disk_id[:8]}, restorable until 2030-01-02" in everything
    answer = json.loads(cli.run("disk", "list", "--json").stdout)
    assert [disk["disk_name"] for disk in answer["disks"]] == ["data", "busy"]


def test_a_disk_whose_volume_is_gone_and_one_that_others_use_say_so(cli: Cli, api: FakeApi) -> None:
    since = datetime(2026, 1, 2, 3, tzinfo=UTC)
    api.disks.add("lost", state="missing", volume_id="vol-1", volume_missing_since=since, snapshot_count=2)
    api.disks.add("lent", state="in use", in_use=True)
    _, lent, lost = sorted(cli.run("disk", "list").stdout.splitlines())
    assert lost.split()[:2] == ["lost", "missing"]
    assert "volume vol-1 no longer exists since 2026-01-02" in lost
    assert lost.endswith("; its snapshots can be restored")
    assert lent.endswith("attached outside gpu-dev")
    assert "missing" in cli.run("disk", "show", "lost").stdout


def test_one_is_shown_with_snapshots_history_and_contents(cli: Cli, api: FakeApi) -> None:
    snapshot = make_snapshot(is_current=True)
    api.disks.add(
        "data",
        size_gb=200,
        snapshots=[snapshot, make_snapshot(status="pending", files=None, size_bytes=None)],
        history=[make_line("created, 200 GB"), make_line("a \x1b[31mred\x1b[0m line")],
        contents=make_contents(*(f"paper-{number}.tex" for number in range(12)), files=40, folders=2),
    )
    done = cli.run("disk", "show", "data")
    assert done.returncode == 0, done.stderr
    for words in (
        "200 GB",
        f"{snapshot.snapshot_id[:8]}  current",
        "3 files, 3.2 GB",
        "pending",
        "paper-9.tex",
        "40 files, 2 folders, 60 kB in all",
        "created, 200 GB (ada)",
    ):
        assert words in done.stdout, words
    assert "paper-10.tex" not in done.stdout, "a few names are enough to know it by"
    assert "\x1b" not in done.stdout
    assert "paper-10.tex" in cli.run("disk", "contents", "data").stdout
    assert json.loads(cli.run("disk", "show", "data", "--json").stdout)["disk_name"] == "data"


def test_what_was_on_a_deleted_disk_is_listed_before_it_is_restored(cli: Cli, api: FakeApi) -> None:
    api.disks.add("old", is_deleted=True, state="deleted", contents=make_contents("thesis.tex", files=1, folders=1))
    assert cli.run("disk", "contents", "old").returncode == 4
    listed = cli.run("disk", "contents", "old", "--deleted").stdout
    assert "thesis.tex" in listed
    assert "1 file, 1 folder, " in listed


def test_a_new_name_is_for_deleted_disks_and_a_clone_is_pointed_out(cli: Cli, api: FakeApi) -> None:
    api.disks.add("data", snapshots=[make_snapshot()])
    refused = cli.run("disk", "restore", "data", "--snapshot", "abcd", "--as", "new")
    assert refused.returncode == 2
    assert "--as and --id are for a deleted disk" in refused.stderr
    assert "disk clone" in refused.stderr


def test_snapshots_are_listed(cli: Cli, api: FakeApi) -> None:
    api.disks.add("empty")
    snapshot = make_snapshot(why="asked")
    api.disks.add("data", snapshots=[snapshot])
    assert "empty has no snapshots" in cli.run("disk", "snapshots", "empty").stdout
    [_, line] = cli.run("disk", "snapshots", "data").stdout.splitlines()
    assert line.startswith(f"{snapshot.snapshot_id[:8]}  completed")
    assert line.endswith("asked")
    answer = json.loads(cli.run("disk", "snapshots", "data", "--json").stdout)
    assert answer["snapshots"][0]["snapshot_id"] == snapshot.snapshot_id


def test_everything_that_can_be_done_is_sent_waited_for_and_told(cli: Cli, api: FakeApi) -> None:
    for arguments, asked, said in (
        (
            ["create", "data", "--size", "200"],
            ("create", "data", {"disk_name": "data", "size_gb": 200}),
            "Created: data",
        ),
        (["snapshot", "data"], ("snapshot", "data", {}), "Snapshot taken: data"),
        (["resize", "data", "--size", "300"], ("resize", "data", {"size_gb": 300}), "Resized: data, 300 GB"),
        (["clone", "data", "copy"], ("clone", "copy", {"new_name": "copy"}), "Cloned: data to copy"),
        (
            ["clone", "data", "old", "--size", "400", "--snapshot", "3F2A"],
            ("clone", "old", {"new_name": "old", "size_gb": 400, "snapshot_id": "3f2a"}),
            "Cloned: data to old",
        ),
        (["rename", "copy", "second"], ("rename", "second", {"new_name": "second"}), "Renamed: copy is now second"),
        (
            ["restore", "data", "--snapshot", "3f2a9c1e"],
            ("restore", "data", {"snapshot_id": "3f2a9c1e"}),
            "Restored: data from snapshot 3f2a9c1e",
        ),
        (["delete", "data"], ("delete", "data", {}), "Deleted: data. It can be restored until"),
        (["restore", "data"], ("restore", "data", {}), "Restored: data, in its state at deletion"),
        (["delete", "data", "--yes"], ("delete", "data", {}), "Deleted: data"),
        (["restore", "data", "--as", "back"], ("restore", "back", {"new_name": "back"}), "Restored: back"),
    ):
        done = cli.run("disk", *arguments)
        assert (done.returncode, done.stderr) == (0, ""), arguments
        assert said in done.stdout, arguments
        assert api.disks.asked[-1] == asked
        [*_, last] = [one.path for one in api.asked if "/operations/" in one.path]
        assert last.endswith(list(api.disks.operations)[-1]), "it was waited for"


def test_each_step_is_a_line_where_nobody_sees_a_screen(cli: Cli, api: FakeApi) -> None:
    api.disks.add("data")
    slow = [{"state": "running", "step": "making a snapshot"}] * 5  # the fourth look is late enough to be told
    api.disks.steps = [
        *slow,
        *([{"step": "copying", "error": "the cloud is busy"}] * 3),
        {"state": "done", "error": None},
    ]
    done = cli.run("disk", "clone", "data", "copy")
    assert done.stdout.splitlines() == [
        "Cloning data: making a snapshot",
        "Cloning data: copying (retrying: the cloud is busy)",
        "Cloned: data to copy.",
        "  gpu-dev reserve --disk copy",
    ]


def test_no_wait_returns_at_once_and_says_so(cli: Cli, api: FakeApi) -> None:
    done = cli.run("disk", "create", "data", "--no-wait")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "Requested: data.")
    assert not [one for one in api.asked if "/operations/" in one.path]


def test_json_is_the_operation_and_nothing_else(cli: Cli, api: FakeApi) -> None:
    api.disks.steps = [{"state": "running", "step": "making the volume"}, {"state": "done", "result": "volume v1"}]
    done = cli.run("disk", "create", "data", "--json")
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""
    answer = json.loads(done.stdout)
    assert (answer["kind"], answer["state"], answer["result"]) == ("create", "done", "volume v1")
    asked = json.loads(cli.run("disk", "delete", "data", "--json", "--no-wait").stdout)
    assert (asked["kind"], asked["state"]) == ("delete", "waiting")


def test_what_failed_says_why_and_ends_with_its_code(cli: Cli, api: FakeApi) -> None:
    api.disks.steps = [{"state": "failed", "error": "the quota of the account is used up"}]
    done = cli.run("disk", "create", "data")
    assert done.returncode == 5
    assert "failed: the quota of the account is used up. No disk 'data' was created" in done.stderr
    assert done.stdout == ""
    done = cli.run("disk", "create", "data", "--json")
    assert (done.returncode, json.loads(done.stdout)["state"]) == (5, "failed")
    assert json.loads(done.stderr)["code"] == "operation_failed"
    done = cli.run("disk", "snapshot", "data")
    assert "failed: the quota of the account is used up. `gpu-dev disk show data`" in done.stderr


def test_refusals_are_sentences_that_name_the_next_step(cli: Cli, api: FakeApi) -> None:
    done = cli.run("disk", "show", "data")
    assert done.returncode == 4
    assert done.stderr.startswith("Error: you have no disk 'data'. `gpu-dev disk list` shows your disks")
    refuse(api, "/v1/disks/data", 409, "disk_held", "Disk 'data' is held by reservation 3f2a9c1e")
    done = cli.run("disk", "delete", "data", "--yes")
    assert (done.returncode, done.stderr) == (5, "Error: Disk 'data' is held by reservation 3f2a9c1e.\n")
    refuse(api, "/v1/disks", 429, "limit_reached", "You have 10 disks; 10 is the limit.")
    done = cli.run("disk", "create", "data")
    assert (done.returncode, done.stderr) == (5, "Error: You have 10 disks; 10 is the limit.\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["create", "UPPER"],
        ["create", "data", "--size", "0"],
        ["create"],
        ["resize", "data"],
        ["clone", "data"],
        ["restore", "data", "--snapshot", "xyz"],
        ["nonsense"],
    ],
)
def test_what_cannot_be_meant_is_never_sent(cli: Cli, api: FakeApi, arguments: list[str]) -> None:
    done = cli.run("disk", *arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert not api.asked


def test_a_cut_connection_does_nothing_twice(cli: Cli, api: FakeApi) -> None:
    api.fail_next("/v1/disks", Trouble(cut_after=True))
    assert cli.run("disk", "create", "data").returncode == 0
    assert len(api.requests("POST", "/v1/disks")) == 2
    assert [kind for kind, _, _ in api.disks.asked] == ["create"]


def test_an_api_that_is_away_for_a_moment_is_waited_for(cli: Cli, api: FakeApi) -> None:
    more_than_one_call_tries = 6
    for last_digit in "0123456789abcdef":  # of the operation's id, at the end of its path
        api.fail_next(last_digit, *[Trouble(cut_before=True)] * more_than_one_call_tries)
    done = cli.run("disk", "create", "data")
    assert done.returncode == 0, done.stderr
    assert "Creating data: retrying: " in done.stdout
    assert done.stdout.splitlines()[-2] == "Created: data."


def test_an_api_that_stays_away_is_given_up(cli: Cli, api: FakeApi) -> None:
    for last_digit in "0123456789abcdef":
        api.fail_next(last_digit, *[Trouble(cut_before=True)] * 50)
    done = cli.run("disk", "create", "data", env={"GPU_DEV_PATIENCE_SECONDS": "0.1"})
    assert done.returncode == 7
    assert done.stderr.count("\n") == 1


def test_deleting_is_asked_about_at_a_terminal(cli: Cli, api: FakeApi) -> None:
    api.disks.add("data", size_gb=200)
    with cli.terminal("disk", "delete", "data") as terminal:
        terminal.wait_for("200 GB", "Delete this disk?")
        terminal.press("n\n")
        assert terminal.wait() == 0
        assert "Nothing was deleted." in terminal.text
    assert not api.disks.called("data").is_deleted
    with cli.terminal("disk", "delete", "data") as terminal:
        terminal.wait_for("Delete this disk?")
        terminal.press("y\n")
        assert terminal.wait() == 0
        assert "Deleted: data" in terminal.text
    assert api.disks.find("data", deleted=True).is_deleted


def test_the_step_is_drawn_in_place_at_a_terminal_and_ctrl_c_leaves_it_going(cli: Cli, api: FakeApi) -> None:
    api.disks.add("data")
    api.disks.steps = [{"state": "running", "step": "making a snapshot"}]
    with cli.terminal("disk", "clone", "data", "copy") as terminal:
        terminal.wait_for("Cloning data: making a snapshot (0:00:0")
        terminal.interrupt()
        assert terminal.wait() == 130
        assert "Cloning data" not in terminal.text.splitlines()[-1]
        assert "continues" in terminal.text


def test_names_of_disks_are_completed(cli: Cli, api: FakeApi) -> None:
    for name in ("data", "datum", "other"):
        api.disks.add(name)
    api.disks.add("dated", is_deleted=True, state="deleted")

    def completed(words: str) -> list[str]:
        env: dict[str, str | None] = {
            "_GPU_DEV_COMPLETE": "bash_complete",
            "COMP_WORDS": f"gpu-dev {words}",
            "COMP_CWORD": str(len(words.split())),
        }
        return [line.partition(",")[2] for line in cli.run(env=env).stdout.splitlines()]

    assert completed("disk show dat") == ["data", "datum"]
    assert completed("reserve --disk dat") == ["data", "datum"]
    assert completed("disk restore dat") == ["data", "datum", "dated"]
    assert "clone" in completed("disk c")


# --- reserve --disk


def test_reserving_with_a_disk_that_is_there_says_nothing_about_it(cli: Cli, api: FakeApi) -> None:
    api.on_submit = at_once
    api.disks.add("data")
    done = cli.run("reserve", "--disk", "data")
    assert done.returncode == 0
    assert "data" not in done.stdout


def test_a_disk_that_is_not_there_is_made_and_told_of_where_nobody_can_be_asked(cli: Cli, api: FakeApi) -> None:
    api.on_submit = at_once
    done = cli.run("reserve", "--disk", "data")
    assert done.stdout.splitlines()[0] == "You have no disk 'data'. Creating a new, empty one."
    assert api.requests("POST", "/submit")[-1].json["disk_name"] == "data"
    quiet = cli.run("reserve", "--disk", "data", "--json")
    assert json.loads(quiet.stdout)["status"] == "active"
    assert quiet.stderr == ""


def test_a_disk_that_is_not_there_is_asked_about_at_a_terminal(cli: Cli, api: FakeApi) -> None:
    api.on_submit = at_once
    with cli.terminal("reserve", "--disk", "data") as terminal:
        terminal.wait_for("You have no disk 'data'. Create a new, empty one? [Y/n]")
        terminal.press("n\n")
        assert terminal.wait() == 0
        assert "Nothing was reserved." in terminal.text
    assert not api.requests("POST", "/submit")
    with cli.terminal("reserve", "--disk", "data") as terminal:
        terminal.wait_for("Create a new, empty one?")
        terminal.press("\n")
        assert terminal.wait() == 0
        assert "Ready" in terminal.text
    with cli.terminal("reserve", "--disk", "data", "--yes") as terminal:
        assert terminal.wait() == 0
        assert "Creating a new, empty one" in terminal.text


def test_the_disk_of_the_settings_is_taken_and_none_is_scratch(cli: Cli, api: FakeApi) -> None:
    api.on_submit = at_once
    api.disks.add("data")
    assert cli.run("config", "set", "disk", "data").stdout == "default_disk is now data.\n"
    assert cli.run("config", "get", "disk").stdout == "data\n"
    cli.run("reserve")
    cli.run("reserve", "--disk", "none")
    cli.run("config", "set", "disk", "none")
    cli.run("reserve")
    sent = [asked.json["disk_name"] for asked in api.requests("POST", "/submit")]
    assert sent == ["data", "none", "none"]
    assert len(api.requests("GET", "/v1/disks/data")) == 1


def test_a_disk_that_is_held_is_refused_with_a_way_out(cli: Cli, api: FakeApi) -> None:
    api.disks.add("data")
    refuse(api, "/submit", 409, "disk_held", "disk 'data' is held by reservation 3f2a9c1e")
    done = cli.run("reserve", "--disk", "data")
    assert done.returncode == 5
    assert "held by reservation 3f2a9c1e. Use `--disk none` for scratch space" in done.stderr


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (9949, "9.9 kB"),
        (9960, "10 kB"),
        (999_600, "1.0 MB"),
        (3 * 10**15, "3.0 PB"),
    ],
)
def test_sizes_are_told_in_a_few_digits(size: int, words: str) -> None:
    assert disk_formatting.data_size(size) == words


def test_contents_that_may_have_changed_since_or_were_not_all_counted_are_told_as_such(cli: Cli, api: FakeApi) -> None:
    former = replace(make_contents("a.txt", files=1), is_latest=False, is_counted=False)
    api.disks.add("data", snapshots=[make_snapshot()], contents=former)
    shown = cli.run("disk", "show", "data").stdout
    assert "; later contents are unknown):" in shown
    assert "1 file, 0 folders, 1.5 kB or more: the listing was stopped at its time limit" in shown
    assert "; later contents are unknown:" in cli.run("disk", "contents", "data").stdout


def test_a_disk_that_could_not_be_made_is_shown_with_the_reason_and_made_anew_by_reserving(
    cli: Cli, api: FakeApi
) -> None:
    failed = make_operation(state="failed", error="the quota is used up", disk_name="data")
    api.disks.add("data", state="failed", operation=failed)
    for said in (cli.run("disk", "list").stdout, cli.run("disk", "show", "data").stdout):
        assert "failed" in said
        assert "creation failed: the quota is used up" in said
    api.on_submit = at_once
    done = cli.run("reserve", "--disk", "data")
    assert "Disk 'data' could not be created (the quota is used up). Creating a new, empty one." in (done.stdout)


def test_what_a_snapshot_lacks_is_told_beside_it(cli: Cli, api: FakeApi) -> None:
    api.disks.add("data", snapshots=[make_snapshot(lacks="1 that cannot be read: theirs")])
    for command in ("show", "snapshots"):
        said = " ".join(cli.run("disk", command, "data").stdout.split())
        assert "end of reservation; lacks 1 that cannot be read: theirs" in said


def test_where_nobody_could_look_that_is_said(cli: Cli, api: FakeApi) -> None:
    api.disks.add("data", snapshots=[make_snapshot(files=None, size_bytes=None)])
    assert "Contents: unknown." in cli.run("disk", "show", "data").stdout
    api.disks.add("new")
    assert "Contents" not in cli.run("disk", "show", "new").stdout


def test_several_are_deleted_at_once_with_a_yes_where_nobody_can_be_asked(cli: Cli, api: FakeApi) -> None:
    for name in ("one", "two"):
        api.disks.add(name)
    refused = cli.run("disk", "delete", "one", "two")
    assert refused.returncode == 2
    assert "requires --yes" in refused.stderr
    done = cli.run("disk", "delete", "one", "nowhere", "two", "--yes")
    assert done.returncode == 4
    for name in ("one", "two"):
        assert api.disks.find(name, deleted=True).is_deleted


def test_sizes_are_given_as_people_write_them(cli: Cli, api: FakeApi) -> None:
    assert cli.run("disk", "create", "data", "--size", "2T").returncode == 0
    assert api.disks.called("data").size_gb == 2048
    assert cli.run("disk", "create", "other", "--size", "10X").returncode == 2
