"""`gpu-dev run` as far as it goes without a dev server: what it refuses, and how it waits and stops waiting."""

import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from support.client.cli_process import Cli
from support.client.fake_api import FakeApi

pytestmark = pytest.mark.slow


def test_it_says_what_is_missing_before_anything_is_reserved(cli: Cli, api: FakeApi, tmp_path: Path) -> None:
    for arguments, told in (
        (["run"], "give a command after --"),
        (["run", "--", "true"], "refusing to copy"),
        (["run", "--folder", "/", "--", "true"], "refusing to copy"),
        (["run", "--folder", "nowhere", "--", "true"], "does not exist"),
        (["run", "--folder", str(tmp_path), "--no-copy", "--", "true"], "mutually exclusive"),
        (["run", "--no-copy", "--detach", "--get", "out", "--", "true"], "--get waits for the command"),
        (["run", "--no-copy", "--get", "../out", "--", "true"], "invalid path '../out' for --get"),
        (["logs", "--output", "--json"], "not both"),
    ):
        done = cli.run(*arguments)
        assert done.returncode == 2, done.stderr
        assert told in done.stderr
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / ".gitignore").touch()
    without_git = cli.run("run", "--folder", str(tmp_path / "project"), "--", "true", env={"PATH": str(tmp_path)})
    assert without_git.returncode == 8, without_git.stderr
    assert "git is required" in without_git.stderr
    assert api.jobs == {}


def test_a_current_folder_that_is_gone_is_named_as_that(cli: Cli, api: FakeApi, tmp_path: Path) -> None:
    folder = shlex.quote(str(tmp_path / "gone"))
    command = f"mkdir {folder} && cd {folder} && rmdir {folder} && exec {shlex.join(cli.program)} run -- true"
    done = subprocess.run(["bash", "-c", command], env=cli.environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 8, done.stderr
    assert "the current folder does not exist" in done.stderr
    assert api.jobs == {}


def test_a_queue_wait_is_told_beside_the_output_and_ctrl_c_frees_the_place(cli: Cli, api: FakeApi) -> None:
    process = cli.start("run", "--no-copy", "--", "true")
    api.wait_for(lambda: bool(api.told), "it follows its reservation")
    (job_id,) = api.jobs
    api.change(job_id, status="queued", queue_position=3, estimated_wait_minutes=40)
    assert process.stderr is not None
    lines = [process.stderr.readline() for _ in range(2)]
    assert "position 3" in lines[-1]
    assert "in about 40 min" in lines[-1]
    process.send_signal(signal.SIGINT)
    out, told = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "was released" in told
    assert api.jobs[job_id].status == "cancelled"


def test_at_a_terminal_the_countdown_says_what_ctrl_c_does(cli: Cli, api: FakeApi) -> None:
    with cli.terminal("run", "--no-copy", "--", "true") as terminal:
        terminal.wait_for("Ctrl-C releases it")
        terminal.interrupt()
        assert terminal.wait() == 130
        assert "was released" in terminal.text
    assert [job.status for job in api.jobs.values()] == ["cancelled"]


def programs(cli: Cli, tmp_path: Path, **scripts: str) -> None:
    """Only these programs, each a script."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    cli.env["PATH"] = str(folder)


def activate_at_once(api: FakeApi) -> None:
    api.on_submit = lambda api, job: api.activate(job.reservation_id) and None


def test_gpus_are_released_when_the_local_ssh_is_killed(cli: Cli, api: FakeApi, tmp_path: Path) -> None:
    activate_at_once(api)
    programs(cli, tmp_path, ssh="kill -KILL $$")
    done = cli.run("run", "--direct", "--no-copy", "--", "true")
    assert done.returncode == 255, done.stderr
    assert [(job.status, job.exit_code) for job in api.jobs.values()] == [("cancelled", None)]


def test_a_result_that_has_no_place_here_does_not_hide_how_the_command_ended(
    cli: Cli, api: FakeApi, home: Path, tmp_path: Path
) -> None:
    activate_at_once(api)
    programs(cli, tmp_path, ssh="exit 3", scp="exit 0")
    (home / "out").write_text("a file, not a folder")
    done = cli.run("run", "--direct", "--no-copy", "--get", "out/model.pt", "--get", "log", "--", "true")
    assert done.returncode == 3, done.stderr
    assert "out/model.pt could not be copied back" in done.stderr
    assert "log could not" not in done.stderr
    assert [(job.status, job.exit_code) for job in api.jobs.values()] == [("cancelled", 3)]


def test_what_copies_results_is_looked_for_before_anything_is_reserved(cli: Cli, api: FakeApi, tmp_path: Path) -> None:
    programs(cli, tmp_path, ssh="exit 0")
    done = cli.run("run", "--no-copy", "--get", "out", "--", "true")
    assert done.returncode == 8
    assert "scp" in done.stderr
    assert api.jobs == {}


def test_one_that_fails_to_start_ends_with_its_reason(cli: Cli, api: FakeApi) -> None:
    api.on_submit = lambda api, job: api.change(job.reservation_id, status="failed", failure_reason="no image") and None
    done = cli.run("run", "--no-copy", "--", "true")
    assert done.returncode == 6
    assert "no image" in done.stderr
    assert done.stdout == ""


def test_a_large_folder_is_asked_about_before_anything_is_reserved(cli: Cli, api: FakeApi, tmp_path: Path) -> None:
    folder = tmp_path / "big"
    folder.mkdir()
    with (folder / "data").open("wb") as file:
        file.truncate(2 * 10**9)
    with cli.terminal("run", "--folder", str(folder), "--", "true") as terminal:
        terminal.wait_for("(1 file, 2.0 GB)", "[Y/n]")
        terminal.press("n\r")
        assert terminal.wait() == 5
        assert "nothing was run" in terminal.text
    assert api.jobs == {}


def test_who_gets_scratch_space_unasked_is_told_by_whatever_starts_something(cli: Cli, api: FakeApi) -> None:
    api.scratch_reason = "disk 'default' is in use by reservation 2ed7fb38 (train)"
    api.on_submit = lambda api, job: api.change(job.reservation_id, status="failed", failure_reason="enough") and None
    for arguments in (["run", "--no-copy", "--", "sh", "-c", "echo $HOME"], ["reserve"], ["reserve", "--json"]):
        done = cli.run(*arguments)
        assert f"scratch space and is lost at the end of this reservation, because {api.scratch_reason}" in done.stderr
    assert [job.command for job in api.jobs.values()] == ["sh -c 'echo $HOME'", None, None]
