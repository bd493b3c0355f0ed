"""`tools/reap`: a test run leaves no process behind, however it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

REAP = Path(__file__).resolve().parents[3] / "tools" / "reap"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: only there orphans can be adopted"),
]


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_process_that_its_starter_lost_is_killed_and_the_exit_code_kept() -> None:
    done = subprocess.run(
        [REAP, "sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!; exit 3"],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    assert done.returncode == 3
    assert "killing leftover process" in done.stderr
    assert not is_alive(int(done.stdout))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_cut_off_takes_everything_along(number: signal.Signals) -> None:
    script = "setsid sleep 600 >/dev/null 2>&1 & echo $!; exec sleep 600"
    with subprocess.Popen([REAP, "sh", "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        detached = int(process.stdout.readline())
        os.kill(process.pid, number)
        assert process.wait(timeout=60) == 128 + number
    assert not is_alive(detached)
