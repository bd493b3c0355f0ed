"""`gpu-dev reserve` where nobody sits at a terminal."""

import json
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpudev.wire import codec
from gpudev.wire.reservations import JobView
from support.client.cli_process import Cli, Completed
from support.client.fake_api import FakeApi, Trouble, make_type

pytestmark = pytest.mark.slow


def only_job(api: FakeApi) -> JobView:
    [job] = api.jobs.values()
    return job


def at_once(api: FakeApi, job: JobView) -> None:
    api.activate(job.reservation_id)


def step_by_step(api: FakeApi, job: JobView) -> None:
    """Every change is made when the one before was told; otherwise several may come as one."""
    api.wait_for(lambda: job.reservation_id in api.told, "the stream has begun")
    start = datetime.now(UTC) + timedelta(minutes=45)
    for changes in (
        {"status": "queued", "queue_position": 2, "estimated_start_at": start, "wait_reason": "all 8 are in use"},
        {"queue_position": 1, "estimated_start_at": start, "wait_reason": "all 8 are in use"},
        {"status": "preparing", "queue_position": None, "estimated_start_at": None, "step": "mounting the disk"},
        {"step": "starting the ssh server"},
    ):
        version = api.change(job.reservation_id, **changes).version
        api.wait_for(lambda now=version: api.told[job.reservation_id] == now, "it was told")
    api.activate(job.reservation_id)


def submitted(api: FakeApi) -> dict[str, Any]:
    [asked] = api.requests("POST", "/submit")
    body: dict[str, Any] = asked.json
    return body


def refusal(done: Completed, code: int) -> str:
    """The one sentence on stderr; stdout has nothing."""
    assert done.returncode == code, done
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_it_tells_every_change_in_a_line_and_ends_with_the_ssh_command(cli: Cli, api: FakeApi) -> None:
    api.on_submit = step_by_step
    done = cli.run("reserve", "--gpus", "2", "--hours", "4")
    assert done.returncode == 0, done.stderr
    short = only_job(api).reservation_id[:8]
    lines = done.stdout.splitlines()
    assert lines[0] == f"Reservation {short}: 2 x a100 for 4 h"
    assert lines[1].startswith("queued: position 2, starts about ")
    assert lines[1].endswith("(in 45 min); all 8 are in use")
    assert lines[2].startswith("queued: position 1, ")
    assert lines[3:5] == ["preparing: mounting the disk", "preparing: starting the ssh server"]
    assert lines[5].startswith("Ready: 2 x a100, ends ")
    assert lines[6:8] == [f"  gpu-dev connect {short}", f"  ssh gpu-dev-{short}"]
    assert "~/.ssh/config" in lines[8]
    assert len(lines) == 9
    assert done.stderr == ""


def test_it_follows_the_stream_and_never_polls(cli: Cli, api: FakeApi) -> None:
    api.on_submit = step_by_step
    cli.run("reserve")
    assert [(asked.method, asked.path.rsplit("/", 1)[1]) for asked in api.asked] == [
        ("POST", "submit"),
        ("GET", "events"),
    ]


def test_what_was_asked_for_is_what_is_sent(cli: Cli, api: FakeApi) -> None:
    api.on_submit = at_once
    sizes = ["--gpus", "4", "--hours", "0.5", "--type", "a100"]
    names = ["--name", "training", "--disk", "data", "--image", "img:1", "--github-user", "ada"]
    assert cli.run("reserve", *sizes, *names).returncode == 0
    assert submitted(api) == {
        "gpu_count": 4,
        "duration_hours": 0.5,
        "gpu_type": "a100",
        "name": "training",
        "disk_name": "data",
        "image": "img:1",
        "github_user": "ada",
    }


def test_without_wishes_the_server_decides(cli: Cli, api: FakeApi) -> None:
    api.on_submit = at_once
    assert cli.run("reserve").returncode == 0
    assert set(submitted(api)) == {"gpu_count", "ssh_public_keys"}
    assert submitted(api)["gpu_count"] == 1


def test_no_wait_returns_with_the_place_in_the_queue(cli: Cli, api: FakeApi) -> None:
    done = cli.run("reserve", "--no-wait")
    assert done.returncode == 0, done.stderr
    short = only_job(api).reservation_id[:8]
    assert done.stdout.startswith(f"Reserved: {short} (1 x a100), pending: ")
    assert f"gpu-dev status {short}" in done.stdout
    assert not api.requests("GET", "/events")


def test_json_prints_the_final_answer_and_nothing_else(cli: Cli, api: FakeApi) -> None:
    api.on_submit = step_by_step
    done = cli.run("reserve", "--json")
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    answer = json.loads(done.stdout)
    assert answer == codec.encode_model(only_job(api))
    assert answer["status"] == "active"


def test_json_without_waiting_prints_what_submit_answered(cli: Cli, api: FakeApi) -> None:
    done = cli.run("reserve", "--json", "--no-wait")
    assert done.returncode == 0
    assert done.stderr == ""
    assert json.loads(done.stdout)["status"] == "pending"


def test_a_failed_reservation_has_an_exit_code_of_its_own_and_says_why(cli: Cli, api: FakeApi) -> None:
    api.on_submit = lambda api, job: (
        api.change(job.reservation_id, status="failed", failure_reason="the disk is gone") and None
    )
    done = cli.run("reserve")
    assert done.returncode == 6
    assert "failed: the disk is gone" in done.stderr
    assert f"gpu-dev status {only_job(api).reservation_id[:8]}" in done.stderr


def test_a_failed_reservation_in_json_is_an_answer_and_an_error(cli: Cli, api: FakeApi) -> None:
    api.on_submit = lambda api, job: (
        api.change(job.reservation_id, status="failed", failure_reason="the disk is gone") and None
    )
    done = cli.run("reserve", "--json")
    assert done.returncode == 6
    assert json.loads(done.stdout)["failure_reason"] == "the disk is gone"
    error = json.loads(done.stderr)
    assert error["exit_code"] == 6
    assert error["code"] == "failed"
    assert "the disk is gone" in error["detail"]


@pytest.mark.parametrize("status", ["cancelled", "expired"])
def test_a_reservation_that_ends_while_we_wait_is_no_success(cli: Cli, api: FakeApi, status: str) -> None:
    api.on_submit = lambda api, job: api.change(job.reservation_id, status=status) and None
    done = cli.run("reserve")
    assert done.returncode == 6
    assert status in done.stderr


def test_an_interrupt_leaves_the_reservation_and_says_how_to_come_back(cli: Cli, api: FakeApi) -> None:
    process = cli.start("reserve")
    api.wait_for(lambda: bool(api.requests("GET", "/events")), "it waits")
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=20)
    short = only_job(api).reservation_id[:8]
    assert process.returncode == 130
    assert f"gpu-dev status {short}" in complaint
    assert f"gpu-dev cancel {short}" in complaint
    assert "Traceback" not in complaint
    assert only_job(api).status == "pending"
    assert not api.requests("POST", "/cancel")


def test_a_broken_stream_is_taken_up_where_it_broke(cli: Cli, api: FakeApi) -> None:
    api.streams_end_after.extend([1, 1])

    def ready_once_the_third_stream_is_open(api: FakeApi, job: JobView) -> None:
        api.wait_for(lambda: len(api.requests("GET", "/events")) == 3, "a third stream")
        api.activate(job.reservation_id)

    api.on_submit = ready_once_the_third_stream_is_open
    done = cli.run("reserve")
    assert done.returncode == 0, done.stderr
    first, second, _ = api.requests("GET", "/events")
    assert "Last-Event-ID" not in first.headers
    assert second.headers["Last-Event-ID"] == "1"
    assert api.requests("GET", only_job(api).reservation_id), "in between it asks plainly"


def test_without_a_stream_it_asks_with_growing_pauses(cli: Cli, api: FakeApi) -> None:
    no_stream = Trouble(answer=(503, "text/plain", b"no streams here"))
    api.fail_next("/events", *[no_stream] * 50)

    def ready_after_two_looks(api: FakeApi, job: JobView) -> None:
        api.wait_for(lambda: len(api.requests("GET", job.reservation_id)) == 2, "two looks")
        api.activate(job.reservation_id)

    api.on_submit = ready_after_two_looks
    done = cli.run("reserve")
    assert done.returncode == 0, done.stderr
    assert "retrying" in done.stdout
    assert 3 <= len(api.requests("GET", only_job(api).reservation_id)) <= 4


def test_a_stream_that_talks_nonsense_is_not_believed(cli: Cli, api: FakeApi) -> None:
    nonsense = Trouble(answer=(200, "text/event-stream", b'event: job\ndata: {"status": 5}\n\n'))
    api.fail_next("/events", nonsense)
    api.on_submit = at_once
    done = cli.run("reserve")
    assert done.returncode == 0, done.stderr
    assert "Ready" in done.stdout


def test_an_api_that_stays_away_is_given_up_in_the_end(cli: Cli, api: FakeApi) -> None:
    api.on_submit = lambda api, _job: api.close()
    done = cli.run("reserve", env={"GPU_DEV_PATIENCE_SECONDS": "0.5"})
    assert done.returncode == 7
    assert "does not respond" in done.stderr
    assert f"gpu-dev status {only_job(api).reservation_id[:8]}" in done.stderr


@pytest.mark.parametrize("trouble", [Trouble(cut_before=True), Trouble(cut_after=True)], ids=["before", "after"])
def test_a_cut_connection_never_makes_two_reservations(cli: Cli, api: FakeApi, trouble: Trouble) -> None:
    api.fail_next("/submit", trouble, trouble)
    api.on_submit = at_once
    done = cli.run("reserve")
    assert done.returncode == 0, done.stderr
    asked = api.requests("POST", "/submit")
    assert len(asked) == 3
    assert len({one.headers["Idempotency-Key"] for one in asked}) == 1
    assert len(api.jobs) == 1


def test_when_nobody_knows_whether_it_was_made_it_says_so(cli: Cli, api: FakeApi) -> None:
    api.fail_next("/submit", *[Trouble(cut_after=True)] * 4)
    assert "gpu-dev list" in refusal(cli.run("reserve"), 7)


def test_two_reservations_never_share_an_idempotency_key(cli: Cli, api: FakeApi) -> None:
    cli.run("reserve", "--no-wait")
    cli.run("reserve", "--no-wait")
    assert len(api.jobs) == 2


def test_several_types_without_a_terminal_are_refused_with_the_list(cli: Cli, api: FakeApi) -> None:
    api.types = [make_type("a100"), make_type("h100")]
    assert "several GPU types have nodes, so name one of a100, h100" in refusal(cli.run("reserve"), 5)
    assert not api.jobs


def test_settings_stand_in_for_what_was_not_given(cli: Cli, api: FakeApi) -> None:
    api.types = [make_type("a100"), make_type("h100"), make_type("cpu-x86")]
    for name, value in {"default_gpu_type": "h100", "default_hours": "2", "default_disk": "work"}.items():
        assert cli.run("config", "set", name, value).returncode == 0
    cli.run("reserve", "--no-wait")
    assert submitted(api) | {"ssh_public_keys": None} == {
        "gpu_count": 1,
        "gpu_type": "h100",
        "duration_hours": 2.0,
        "disk_name": "work",
        "ssh_public_keys": None,
    }


def test_the_usual_gpu_type_is_not_meant_when_no_gpus_are(cli: Cli, api: FakeApi) -> None:
    api.types = [make_type("a100"), make_type("cpu-x86")]
    cli.run("config", "set", "default_gpu_type", "a100")
    assert cli.run("reserve", "--gpus", "0", "--no-wait").returncode == 0
    assert only_job(api).gpu_type == "cpu-x86"


def test_a_cpu_type_needs_no_number_of_gpus(cli: Cli, api: FakeApi) -> None:
    api.types = [make_type("a100"), make_type("cpu-x86")]
    assert cli.run("reserve", "--type", "cpu-x86", "--no-wait").returncode == 0
    assert submitted(api)["gpu_count"] == 0


def test_on_one_machine_the_persons_own_keys_are_sent(cli: Cli, api: FakeApi, home: Path) -> None:
    (home / ".ssh" / "broken.pub").write_text("not a key\n")
    (home / ".ssh" / "id_rsa-cert.pub").write_text("ssh-rsa-cert-v01@openssh.com AAAA\n")
    (home / ".gpu-dev").mkdir()
    own = (home / ".ssh" / "id_ed25519.pub").read_text().replace("IJ9z", "IJ8z")
    (home / ".gpu-dev" / "id_ed25519.pub").write_text(own)
    assert cli.run("reserve", "--no-wait").returncode == 0
    keys = submitted(api)["ssh_public_keys"]
    assert [key.split()[0] for key in keys] == ["ssh-ed25519", "ssh-ed25519"]
    assert "IJ8z" in keys[0]
    assert "IJ9z" in keys[1]


def test_a_github_user_stands_above_local_keys(cli: Cli, api: FakeApi) -> None:
    cli.run("config", "set", "github_user", "octocat")
    cli.run("reserve", "--no-wait")
    assert submitted(api)["github_user"] == "octocat"
    assert "ssh_public_keys" not in submitted(api)


def test_a_key_file_stands_above_the_github_user_of_the_settings(cli: Cli, api: FakeApi, home: Path) -> None:
    cli.run("config", "set", "github_user", "octocat")
    key = (home / ".ssh" / "id_ed25519.pub").read_text()
    (home / "keys").write_text(f"# mine\n\n{key}")
    cli.run("reserve", "--no-wait", "--key", "keys")
    assert "github_user" not in submitted(api)
    assert submitted(api)["ssh_public_keys"] == [" ".join(key.split()[:2])]


def test_without_any_key_both_ways_to_one_are_named(cli: Cli, api: FakeApi, home: Path) -> None:
    (home / ".ssh" / "id_ed25519.pub").unlink()
    sentence = refusal(cli.run("reserve"), 5)
    assert "gpu-dev config set github_user" in sentence
    assert "--key FILE" in sentence
    assert not api.asked


def test_local_keys_are_not_offered_to_an_api_elsewhere(cli: Cli) -> None:
    sentence = refusal(cli.run("reserve", "--api-url", "http://gpu.example.com"), 5)
    assert "gpu-dev config set github_user" in sentence


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n", "private key"),
        ("hello\n", "holds no public key"),
        ("", "holds no public key"),
        ("\x00\x01\x02", "holds no public key"),
    ],
)
def test_a_key_file_without_a_public_key_is_refused(cli: Cli, home: Path, content: str, complaint: str) -> None:
    (home / "key").write_text(content)
    sentence = refusal(cli.run("reserve", "--key", "key"), 2)
    assert complaint in sentence
    assert "BEGIN" not in sentence


def test_a_key_file_that_is_not_there_is_named(cli: Cli) -> None:
    assert "cannot read nowhere.pub: No such file" in refusal(cli.run("reserve", "--key", "nowhere.pub"), 8)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--gpus", "-1"],
        ["--gpus", "two"],
        ["--gpus", "1.5"],
        ["--gpus"],
        ["--hours", "0"],
        ["--hours", "-1"],
        ["--hours", "nan"],
        ["--hours", "inf"],
        ["--hours", "long"],
        ["--hours", ""],
        ["--name", ""],
        ["--name", "two\nlines"],
        ["--name", b"\xff\xfe"],
        ["--type", "a\x1b[31m"],
        ["--github-user", "ada", "--key", "file"],
        ["--nonsense"],
        ["surplus"],
        ["--api-url", "nonsense"],
        ["--api-url", "http://user:secret@host"],
    ],
    ids=str,
)
def test_bad_input_is_a_usage_error_in_one_sentence(cli: Cli, api: FakeApi, arguments: list[str | bytes]) -> None:
    refusal(cli.run("reserve", *arguments), 2)
    assert not api.asked


def test_what_the_api_refuses_is_passed_on_with_its_reason(cli: Cli) -> None:
    assert "invalid GPU count 3 for a100; ask for 1, 2, 4, 8" in refusal(cli.run("reserve", "--gpus", "3"), 5)


def test_a_refusal_in_json_is_the_apis_own_problem(cli: Cli) -> None:
    done = cli.run("reserve", "--gpus", "3", "--json")
    assert done.returncode == 5
    assert done.stdout == ""
    problem = json.loads(done.stderr)
    assert problem["status"] == 422
    assert problem["field"] == "gpu_count"
    assert problem["code"] == "invalid"
    assert problem["exit_code"] == 5
    assert problem["request_id"] == "r1"
