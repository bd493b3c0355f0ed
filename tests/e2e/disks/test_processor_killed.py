"""Files outlive whoever looks after them: the processor is killed at the worst moments, on one machine."""

import json
from pathlib import Path

import pytest

from support.polling import eventually
from support.system.embedded_system import System

pytestmark = pytest.mark.slow


def complete_snapshots(system: System) -> list[Path]:
    """Those on the machine's own file system, by their records."""
    folder = system.home / "state" / "disks" / ".snapshots"
    records = folder.glob("*/record.json")
    return [path.parent for path in records if json.loads(path.read_text())["state"] == "completed"]


def test_files_are_there_again_though_the_processor_was_killed_at_the_end_and_at_the_start(clean: System) -> None:
    job = clean.ask("reserve", "--gpus", "1", "--hours", "1", "--disk", "kept", "--yes")
    clean.run("connect", job["job_id"][:8], "--", "echo precious > ~/kept; seq 1 20000 > ~/numbers")
    clean.run("cancel", job["job_id"], "--yes")
    clean.kill("processor")
    clean.wait_until_released(job["job_id"])
    taken = eventually(lambda: complete_snapshots(clean), "there never was a snapshot")
    assert any((one / "tree" / "kept").exists() for one in taken)

    again = clean.ask("reserve", "--gpus", "1", "--hours", "1", "--disk", "kept", "--yes", "--no-wait")
    clean.kill("processor")
    active = clean.wait_for(again["job_id"], "active")
    said = clean.run("connect", active["job_id"][:8], "--", "cat ~/kept; tail -1 ~/numbers").stdout
    assert said == "precious\n20000\n"
    clean.run("cancel", again["job_id"], "--yes")
    clean.wait_until_released(again["job_id"])
