"""`gpu-dev run` on a real system: the folder goes there, the output and the exit code come back, the GPUs are freed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpudev import GpuDev
from support.client.cli_process import Terminal
from support.system.embedded_system import System

pytestmark = pytest.mark.slow
PROGRAM = [sys.executable, "-m", "gpudev.cli"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    (made / ".gitignore").write_text("*.ckpt\n")
    (made / "big.ckpt").write_text("x")
    (made / "train.sh").write_text(
        'printf "%s|" "$@"; read -r said && printf "%s|" "$said"; ls; echo warning >&2; exit 7\n'
    )
    return made


def run(system: System, folder: Path, *arguments: str, said: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*PROGRAM, *arguments],
        env=system.environment,
        cwd=folder,
        input=said,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("way", ["--direct", "--proxy"])
def test_output_and_exit_code_are_the_commands_and_nothing_stays(
    system: System, client: GpuDev, folder: Path, way: str
) -> None:
    done = run(
        system,
        folder,
        *("run", "--gpus", "2", "--disk", "none", way),
        *("--", "sh", "train.sh", "two words", "$HOME"),
        said="to the command\n",
    )
    assert (done.returncode, done.stdout) == (7, "two words|$HOME|to the command|train.sh\n")
    assert "warning" in done.stderr
    assert client.jobs.list() == []


def test_results_come_home_and_the_last_line_says_what_is_left(system: System, client: GpuDev, folder: Path) -> None:
    command = "mkdir -p out/deep && echo one >out/deep/a && echo two >model.pt && exit 3"
    get = ("--get", "out/", "--get", "model.pt", "--get", "/etc/hostname")
    done = run(system, folder, "run", "--disk", "none", *get, "--", command)
    assert done.returncode == 3, done.stderr
    assert (folder / "out" / "deep" / "a").read_text() == "one\n"
    assert (folder / "model.pt").read_text() == "two\n"
    assert (folder / "hostname").exists()
    last = done.stderr.splitlines()[-1]
    assert "exit 3 after" in last
    assert "1 x h100 released; files on scratch space are gone" in last
    missing = run(system, folder, "run", "--disk", "none", "--no-copy", "--get", "nothing", "--", "true")
    assert missing.returncode == 4
    assert "nothing could not be copied back" in missing.stderr


def test_one_argument_is_a_line_for_the_shell_and_its_environment_is_there(
    system: System, client: GpuDev, folder: Path
) -> None:
    line = "cd .. && source /dev/null && echo $COLOUR $PYTHONUNBUFFERED ${BASH_VERSION:+bash}"
    options = ("--disk", "none", "--env", "COLOUR=green", "--no-copy")
    assert run(system, folder, "run", *options, "--", line).stdout == "green 1 bash\n"


def test_one_that_was_detached_frees_the_gpus_when_it_has_ended(system: System, client: GpuDev, folder: Path) -> None:
    command = "echo up; until [ -e ~/go ]; do sleep 0.1; done; sh train.sh once"
    begun = run(system, folder, "run", "--detach", "--disk", "none", "--", command)
    assert begun.returncode == 0, begun.stderr
    short = begun.stdout.strip()
    assert f"gpu-dev logs {short} --follow" in begun.stderr
    assert "released when the command ends" in begun.stderr
    following = [*PROGRAM, "logs", short, "--follow"]
    with subprocess.Popen(following, env=system.environment, stdout=subprocess.PIPE, text=True) as followed:
        assert followed.stdout is not None
        history = list(iter(followed.stdout.readline, "up\n"))
        assert any("ready:" in line for line in history)
        client.server(short).run("touch ~/go")
        written, _ = followed.communicate(timeout=60)
    assert (followed.returncode, written) == (7, "once|train.sh\nwarning\n")
    client.jobs.wait_until_released(short, timeout=60)
    assert client.jobs.list() == []
    over = run(system, folder, "logs", short)
    lines = [line.strip() for line in over.stdout.splitlines()]
    (ended,) = [place for place, line in enumerate(lines) if line.endswith("the command ended with exit code 7")]
    assert lines[ended + 1 : ended + 5] == ["Last lines:", "up", "once|train.sh", "warning"]
    refused = run(system, folder, "logs", short, "--output")
    assert refused.returncode == 5
    assert "without --output" in refused.stderr


def test_one_that_is_kept_stays_until_somebody_ends_it(system: System, client: GpuDev, folder: Path) -> None:
    begun = run(system, folder, "run", "--detach", "--keep", "--disk", "none", "--", "sh train.sh once")
    short = begun.stdout.strip()
    assert "It runs until it expires or you cancel it" in begun.stderr
    assert run(system, folder, "logs", short, "--follow").returncode == 7
    assert run(system, folder, "logs", short, "--output").stdout == "once|train.sh\nwarning\n"
    for line in run(system, folder, "logs", short, "--json").stdout.splitlines():
        assert json.loads(line)["kind"]
    server = client.server(short)
    assert "ends" not in server.run("ls ~/.gpu-dev-run").stdout
    server.start("exit 4", then_release=True)
    history = [event.message for event in client.jobs.follow(short)]
    assert "the command ended with exit code 4" in history
    assert run(system, folder, "run", "--keep", "--", "true").returncode == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_whoever_ends_it_frees_the_gpus(system: System, client: GpuDev, folder: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [*PROGRAM, "run", "--disk", "none", "--", "echo up; sleep 300"],
        # Whoever runs the tests may ignore it (nohup does), and what starts so rightly goes on so.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # noqa: PLW1509 - nothing else runs in that child
        env=system.environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    os.kill(process.pid, number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "was released" in told
    assert client.jobs.list() == []


def test_ctrl_c_at_a_terminal_reaches_the_command_there(system: System, client: GpuDev, folder: Path) -> None:
    command = [*PROGRAM, "run", "--disk", "none", "--folder", str(folder), "--", "test -t 1 && echo up; sleep 300"]
    with Terminal(command, {**system.environment, "TERM": "xterm-256color"}) as terminal:
        terminal.wait_for("up", seconds=60)
        terminal.interrupt()
        assert terminal.wait(60) == 130
    assert client.jobs.list() == []


def test_a_reservation_that_ends_meanwhile_says_so(system: System, client: GpuDev, folder: Path) -> None:
    process = subprocess.Popen(
        [*PROGRAM, "run", "--disk", "none", "--no-copy", "--", "echo up; sleep 300"],
        env=system.environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    (job,) = client.jobs.list()
    client.jobs.cancel(job.job_id)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 6
    assert "was cancelled while the command ran" in told


def test_runs_one_after_the_other_find_each_others_files(system: System, client: GpuDev, folder: Path) -> None:
    for count in range(1, 5):
        done = run(system, folder, "run", "--no-copy", "--", f"echo {count} >> ~/results; cat ~/results")
        assert (done.returncode, done.stdout.split()) == (0, [str(n + 1) for n in range(count)]), done.stderr
        assert "scratch" not in done.stderr
    run(system, folder, "run", "--no-copy", "--", "exit 17")
    ended = client.jobs.list(status=[], limit=5)
    assert [job.outcome for job in ended] == ["exit 17", "done", "done", "done", "done"]
    assert [job.command for job in ended][:1] == ["exit 17"]
