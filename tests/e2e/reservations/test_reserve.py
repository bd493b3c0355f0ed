"""From nothing to a shell, and who waits for whom: through the command line, on real parts."""

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from support.system.embedded_system import System

pytestmark = pytest.mark.slow


def test_a_command_runs_in_a_reserved_dev_server_over_real_ssh(clean: System) -> None:
    job = clean.ask("reserve", "--gpus", "2", "--hours", "1", "--yes")
    assert job["status"] == "active"
    said = clean.run("connect", job["job_id"][:8], "--", "echo $CUDA_VISIBLE_DEVICES $GPU_DEV_GPU_COUNT").stdout
    assert said == "0,1 2\n"
    assert job["ssh_command"] == f"ssh -p {job['node_port']} dev@127.0.0.1"


@pytest.fixture
def bob(clean: System) -> Iterator[dict[str, str]]:
    """A second user, who leaves nothing behind."""
    key = {"GPU_DEV_API_KEY": clean.add_user("bob")}
    yield key
    clean.run("cancel", "--all", "--yes", **key)


def test_of_two_users_on_eight_gpus_one_waits_until_the_other_ends_and_starts_at_once(
    clean: System, bob: dict[str, str]
) -> None:
    first = clean.ask("reserve", "--gpus", "8", "--hours", "2", "--yes")
    submitted = clean.ask("reserve", "--gpus", "8", "--hours", "1", "--no-wait", "--yes", **bob)
    assert submitted["estimated_start_at"] == first["expires_at"]
    second = clean.wait_for(submitted["job_id"], "queued", **bob)
    assert second["estimated_start_at"] == first["expires_at"]
    assert second["queue_position"] == 1
    assert 0 < second["estimated_wait_minutes"] < 120, "people leave early"
    assert second["eta"]["latest"] > first["expires_at"]
    clean.run("cancel", first["job_id"], "--yes")
    started = clean.wait_for(second["job_id"], "active", **bob)
    cancelled = clean.ask("status", first["job_id"])
    # A tenth of a second where nothing else runs, as `bench start` measures.
    assert seconds_between(cancelled["cancelled_at"], started["launched_at"]) < 20


def test_another_users_reservation_does_not_exist_for_you(clean: System) -> None:
    job = clean.ask("reserve", "--gpus", "1", "--hours", "1", "--yes")
    carol = {"GPU_DEV_API_KEY": clean.add_user("carol")}
    clean.run("status", job["job_id"], code=4, **carol)
    clean.run("cancel", job["job_id"], "--yes", code=4, **carol)
    clean.run("connect", job["job_id"], "--", "true", code=4, **carol)
    assert clean.ask("list", **carol)["jobs"] == []


def test_a_file_in_the_home_is_there_next_time(clean: System) -> None:
    first = clean.ask("reserve", "--disk", "papers", "--hours", "1", "--yes")
    clean.run("connect", first["job_id"], "--", "echo kept > ~/note; echo lost > /workspace/note")
    clean.run("cancel", first["job_id"], "--yes")
    clean.wait_until_released(first["job_id"])
    second = clean.ask("reserve", "--disk", "papers", "--hours", "1", "--yes")
    assert clean.run("connect", second["job_id"], "--", "cat ~/note; ls /workspace 2>/dev/null").stdout == "kept\n"


def test_a_disk_in_use_is_refused_with_its_holder(clean: System) -> None:
    holder = clean.ask("reserve", "--disk", "theses", "--hours", "1", "--yes")
    refused = clean.run("reserve", "--disk", "theses", "--hours", "1", "--yes", code=5)
    assert holder["job_id"][:8] in refused.stderr


def test_extending_moves_the_end_and_nobody_may_go_past_the_limit(clean: System) -> None:
    job = clean.ask("reserve", "--gpus", "1", "--hours", "1", "--yes")
    longer = clean.ask("extend", job["job_id"], "--hours", "2")
    assert seconds_between(job["expires_at"], longer["expires_at"]) == 7200
    refused = clean.run("extend", job["job_id"], "--hours", "100", code=5)
    assert "48" in refused.stderr


def test_everything_made_is_gone_when_a_reservation_ends(clean: System) -> None:
    job = clean.ask("reserve", "--gpus", "1", "--hours", "1", "--disk", "none", "--yes")
    clean.run("connect", job["job_id"], "--", "nohup setsid sleep 987654 >/dev/null 2>&1 & disown")
    assert clean.processes_with("987654")
    clean.run("cancel", job["job_id"], "--yes")
    clean.wait_until_released(job["job_id"])
    assert clean.processes_with("987654") == []
    assert not (clean.home / "state" / "servers" / job["job_id"]).exists()


def test_a_reservation_that_runs_out_ends_by_itself(clean: System) -> None:
    job = clean.ask("reserve", "--gpus", "1", "--hours", "0.001", "--disk", "none", "--yes")
    ended = clean.wait_for(job["job_id"], "expired")
    assert seconds_between(job["expires_at"], ended["reservation_ended"]) < 20
    released = clean.wait_until_released(job["job_id"])
    assert released["failure_reason"] is None


def test_a_gang_of_two_nodes_does_not_fit_one_machine_and_is_refused(clean: System) -> None:
    refused = clean.run("reserve", "--gpus", "16", "--hours", "1", "--yes", code=5)
    assert "16" in refused.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--gpus", "3"],
        ["--gpus", "64"],
        ["--gpus", "-1"],
        ["--gpus", "many"],
        ["--gpus", "0"],
        ["--hours", "0"],
        ["--hours", "25"],
        ["--hours", "nan"],
        ["--hours", "-4"],
        ["--type", "h900"],
        ["--type", "cpu-x86"],
        ["--disk", "No Such/../Name"],
        ["--github-user", "not a name!"],
        ["--name", "x" * 200],
        ["--key", "/nowhere/key.pub"],
        ["--no-such-option"],
    ],
    ids=" ".join,
)
def test_bad_input_is_one_clear_sentence_and_a_code_of_its_own(clean: System, arguments: list[str]) -> None:
    before = len(clean.ask("list", "--all")["jobs"])
    done = clean.run("reserve", "--yes", *arguments, code=None)
    assert done.returncode in (2, 5, 8)
    assert done.stderr.strip()
    assert len(clean.ask("list", "--all")["jobs"]) == before


def test_operators_see_queues_and_users(clean: System) -> None:
    queues = {row["queue"]: row["length"] for row in json.loads(clean.server("queue", "list", "--json").stdout)}
    assert queues.keys() == {
        "gpu_reservations", "gpu_reservations_dlq", "disk_operations", "disk_operations_dlq",
    }  # fmt: skip
    assert queues["gpu_reservations_dlq"] == 0
    assert any(row["role"] == "admin" for row in json.loads(clean.server("users", "list", "--json").stdout))


def seconds_between(earlier: Any, later: Any) -> float:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()
