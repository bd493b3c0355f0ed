"""The supervisor, with stand-in parts: small programs that live, die and refuse to die as told."""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudev.adapters.local.machine.processes import ProcessIdentity, identify, is_alive
from gpudev.embedded import supervised_processes
from gpudev.embedded.layout import Layout
from gpudev.embedded.supervised_processes import (
    FIRST_DELAY,
    HEALTHY_AFTER,
    MAX_DELAY,
    restart_delay,
    rotate_log,
    wait_until,
)

PROGRAM = """
import pathlib, signal, sys
from gpudev.embedded.supervised_processes import ChildSpec, SupervisedService, SupervisedTask
from gpudev.embedded.layout import Layout
from gpudev.embedded.supervisor import Supervisor

layout = Layout(pathlib.Path(sys.argv[1]))
def part(name, code):
    return ChildSpec(name, lambda: [sys.executable, "-S", "-c", code], {"HOME_OF_TEST": sys.argv[1]},
                     layout.pid_file(name), layout.log_file(name),
                     stop_signals=((signal.SIGTERM, 1.0), (signal.SIGKILL, 5.0)))
def noted(code):
    return "import os, sys, time, pathlib; home = pathlib.Path(os.environ['HOME_OF_TEST'])\\n" + code
stages = []
for word in sys.argv[2:]:
    kind, name, code = word.split(":", 2)
    file = layout.home / f"{name}-ready"
    if kind == "task":
        stages.append(SupervisedTask(part(name, noted(code))))
    elif kind == "service":
        stages.append(SupervisedService(part(name, noted(code))))
    else:
        stages.append(SupervisedService(part(name, noted(code)), file.exists, ready_within=60))
tell = lambda step: print("STEP", step.name, step.state, step.reason or "", flush=True)
sys.exit(Supervisor(layout, stages, tell).run())
"""
LIVE = "time.sleep(600)"


@contextlib.contextmanager
def supervising(layout: Layout, *stages: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(layout.home), *stages], stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=30)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "home")


def part(layout: Layout, name: str) -> ProcessIdentity:
    found: list[ProcessIdentity] = []

    def look() -> bool:
        process = supervised_processes.find_process(layout.pid_file(name))
        if process is not None:
            found.append(process)
        return process is not None

    assert wait_until(look, 10), f"{name} does not run"
    return found[-1]


def wait_for_step(process: subprocess.Popen[str], text: str) -> list[str]:
    seen = []
    assert process.stdout is not None
    for line in process.stdout:
        seen.append(line.strip())
        if text in line:
            return seen
    raise AssertionError(f"no {text!r} in {seen}")


class TestTheDelayBeforeARestart:
    def test_is_short_at_first(self) -> None:
        assert restart_delay(0, 0) == FIRST_DELAY

    def test_doubles_up_to_a_limit_for_a_part_that_keeps_dying(self) -> None:
        delays = [0.0]
        for _ in range(10):
            delays.append(restart_delay(delays[-1], 0.01))
        assert delays[1:4] == [0.1, 0.2, 0.4]
        assert delays[-1] == MAX_DELAY

    def test_begins_anew_for_a_part_that_had_been_well(self) -> None:
        assert restart_delay(MAX_DELAY, HEALTHY_AFTER) == FIRST_DELAY


class TestLogs:
    def test_a_log_that_grew_too_long_is_kept_beside_and_begun_anew(self, tmp_path: Path) -> None:
        log = tmp_path / "api.log"
        with log.open("ab", buffering=0) as writer:
            for number in range(5):
                writer.write(b"%d" % number * 100)
                assert rotate_log(log, limit=50)
            writer.write(b"new")  # its writer goes on with the same open file
        assert log.read_bytes() == b"new"
        assert [(tmp_path / f"api.log.{n}").read_bytes()[:1] for n in (1, 2, 3)] == [b"4", b"3", b"2"]
        assert not (tmp_path / "api.log.4").exists()

    def test_a_short_log_is_left_alone(self, tmp_path: Path) -> None:
        log = tmp_path / "api.log"
        log.write_text("few words")
        assert not rotate_log(log)
        assert log.read_text() == "few words"

    def test_a_copy_that_cannot_be_written_changes_nothing(self, tmp_path: Path) -> None:
        log = tmp_path / "api.log"
        log.write_bytes(b"0" * 100)
        assert rotate_log(log, limit=50)
        log.write_bytes(b"1" * 100)
        (tmp_path / "api.log.new").mkdir()  # where the copy would go
        for _ in range(3):
            with pytest.raises(OSError, match=r"api\.log\.new"):
                rotate_log(log, limit=50)
        assert log.read_bytes() == b"1" * 100
        assert (tmp_path / "api.log.1").read_bytes() == b"0" * 100
        (tmp_path / "api.log.new").rmdir()
        assert rotate_log(log, limit=50)
        assert [(tmp_path / f"api.log.{n}").read_bytes()[:1] for n in (1, 2)] == [b"1", b"0"]


class TestPidFiles:
    def test_a_pid_that_was_reused_names_nobody(self, tmp_path: Path) -> None:
        own = identify(os.getpid())
        assert own is not None
        supervised_processes.write_pid_file(tmp_path / "pid", own)
        assert supervised_processes.find_process(tmp_path / "pid") == own
        supervised_processes.write_pid_file(tmp_path / "pid", ProcessIdentity(own.pid, "1", own.boot))
        assert supervised_processes.find_process(tmp_path / "pid") is None

    @pytest.mark.parametrize("content", ["", "12", "one two three", "1\n2\n3\n4\n"])
    def test_a_spoilt_file_names_nobody(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "pid").write_text(content)
        assert supervised_processes.find_process(tmp_path / "pid") is None


@pytest.mark.slow
class TestSupervising:
    def test_parts_start_in_order_each_after_the_one_before_is_ready(self, layout: Layout) -> None:
        first = "time.sleep(0.3); (home / 'first-ready').touch(); time.sleep(600)"
        task = "sys.exit(0 if (home / 'first-ready').exists() else 9)"
        with supervising(layout, f"ready:first:{first}", f"task:migrate:{task}", f"service:last:{LIVE}") as process:
            steps = wait_for_step(process, "STEP supervisor ok")
            assert [line.split()[1:3] for line in steps if line.startswith("STEP")] == [
                ["first", "started"],
                ["first", "ok"],
                ["migrate", "started"],
                ["migrate", "ok"],
                ["last", "started"],
                ["last", "ok"],
                ["supervisor", "ok"],
            ]

    def test_a_killed_part_is_started_again_and_the_others_are_left_alone(self, layout: Layout) -> None:
        with supervising(layout, f"service:one:{LIVE}", f"service:two:{LIVE}") as process:
            wait_for_step(process, "STEP supervisor ok")
            one, two = part(layout, "one"), part(layout, "two")
            os.kill(one.pid, signal.SIGKILL)
            assert wait_until(lambda: supervised_processes.find_process(layout.pid_file("one")) not in (None, one), 30)
            assert is_alive(two)

    def test_a_part_starts_without_its_pid_file_which_is_written_when_that_is_possible(self, layout: Layout) -> None:
        layout.make_folders()
        in_the_way = layout.pid_file("one").with_name("one.pid.new")
        in_the_way.mkdir()
        code = "(home / 'started').touch(); " + LIVE
        with supervising(layout, f"service:one:{code}") as process:
            wait_for_step(process, "STEP supervisor ok")
            assert wait_until((layout.home / "started").exists, 30)
            assert not layout.pid_file("one").exists()
            in_the_way.rmdir()
            assert wait_until(layout.pid_file("one").exists, 30)
            assert is_alive(part(layout, "one"))

    def test_a_part_that_keeps_dying_is_tried_again_ever_later(self, layout: Layout) -> None:
        code = "(home / f'start-{time.monotonic()}').touch()"
        with supervising(layout, f"service:bad:{code}") as process:
            wait_for_step(process, "STEP supervisor ok")
            assert wait_until(lambda: len(list(layout.home.glob("start-*"))) >= 4, 60)
        starts = sorted(float(file.name.removeprefix("start-")) for file in layout.home.glob("start-*"))
        gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
        assert gaps[0] >= 0.1
        assert gaps[2] >= 0.4

    def test_told_to_end_it_ends_every_part_also_one_that_will_not(self, layout: Layout) -> None:
        stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); (home / 'stubborn-ready').touch()"
        with supervising(layout, f"service:easy:{LIVE}", f"ready:stubborn:{stubborn}; {LIVE}") as process:
            wait_for_step(process, "STEP supervisor ok")
            easy, stubborn_part = part(layout, "easy"), part(layout, "stubborn")
            process.terminate()
            assert process.wait(30) == 0
            assert not is_alive(easy)
            assert not is_alive(stubborn_part)
            assert not list(layout.run.glob("*.pid"))

    def test_a_hang_up_of_the_terminal_changes_nothing(self, layout: Layout) -> None:
        with supervising(layout, f"service:one:{LIVE}") as process:
            wait_for_step(process, "STEP supervisor ok")
            one = part(layout, "one")
            process.send_signal(signal.SIGHUP)
            time.sleep(0.2)  # nothing happens, and nothing tells when it would have
            assert process.poll() is None
            assert is_alive(one)

    @pytest.mark.parametrize(
        "failing",
        [
            pytest.param("task:bad:sys.exit(3)", id="a task that fails"),
            pytest.param("ready:bad:sys.exit(3)", id="a service that ends before it is ready"),
        ],
    )
    def test_a_part_that_cannot_start_is_named_and_nothing_stays(self, layout: Layout, failing: str) -> None:
        with supervising(layout, f"service:one:{LIVE}", failing, f"service:never:{LIVE}") as process:
            steps = wait_for_step(process, "STEP bad failed")
            assert "exit code 3" in steps[-1]
            assert process.wait(30) == 1
        assert not list(layout.run.glob("*.pid"))
        assert not layout.log_file("never").exists()

    def test_there_is_never_a_second_one(self, layout: Layout) -> None:
        with supervising(layout, f"service:one:{LIVE}") as process:
            wait_for_step(process, "STEP supervisor ok")
            one = part(layout, "one")
            second = subprocess.run(
                [sys.executable, "-c", PROGRAM, str(layout.home), f"service:one:{LIVE}"],
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
            assert second.returncode != 0
            assert "another supervisor" in second.stderr
            assert is_alive(one)
            assert supervised_processes.find_process(layout.pid_file("supervisor")) is not None

    def test_what_a_killed_supervisor_left_is_ended_before_it_would_run_twice(self, layout: Layout) -> None:
        with supervising(layout, f"service:one:{LIVE}") as killed:
            wait_for_step(killed, "STEP supervisor ok")
            left = part(layout, "one")
            killed.kill()
            killed.wait(10)
            assert is_alive(left)
            with supervising(layout, f"service:one:{LIVE}") as process:
                wait_for_step(process, "STEP supervisor ok")
                assert not is_alive(left)
                assert part(layout, "one") != left


def test_a_supervisor_whose_folder_was_removed_ends_with_its_parts_and_touches_nothing_there(layout: Layout) -> None:
    with supervising(layout, f"service:one:{LIVE}", f"service:two:{LIVE}") as process:
        wait_for_step(process, "supervisor ok")
        one, two = part(layout, "one"), part(layout, "two")
        shutil.rmtree(layout.home)
        layout.make_folders()
        layout.supervisor_lock.touch()
        of_another = layout.pid_file("supervisor")
        of_another.write_text("of another")
        os.kill(one.pid, signal.SIGKILL)  # it would be started again
        assert process.wait(30) == 0
        assert not is_alive(two)
        assert of_another.read_text() == "of another"
        assert not layout.pid_file("one").exists()
