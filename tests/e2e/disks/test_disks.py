"""What people leave on their disks is there again: through the command line, on one machine, on real parts."""

from typing import Any

import pytest

from support.polling import eventually
from support.system.embedded_system import System

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def no_disks(system: System) -> None:
    """Whatever an earlier test left."""
    for disk in system.ask("disk", "list")["disks"]:
        if disk["in_use"]:
            system.run("cancel", disk["reservation_id"], "--yes", code=None)
            system.wait_until_released(disk["reservation_id"])
        system.ask("disk", "delete", disk["disk_name"])


def stay(system: System, disk: str, command: str) -> str:
    """Reserve with the disk, run something there, end it, and wait until the disk is free again."""
    job = system.ask("reserve", "--gpus", "1", "--hours", "1", "--disk", disk, "--yes")
    assert job["disk_name"] == disk
    said = system.run("connect", job["job_id"][:8], "--", command).stdout
    system.run("cancel", job["job_id"], "--yes")
    system.wait_until_released(job["job_id"])
    return said


def snapshots(system: System, disk: str, least: int) -> list[dict[str, Any]]:
    def look() -> list[dict[str, Any]] | None:
        found = system.ask("disk", "snapshots", disk)["snapshots"]
        finished = [one for one in found if one["status"] == "completed"]
        return finished if len(finished) >= least else None

    return eventually(look, f"{disk} never had {least} snapshots")


def test_files_are_there_next_time_and_after_a_delete_and_a_restore(clean: System) -> None:
    made = clean.ask("disk", "create", "thesis", "--size", "5")
    assert (made["kind"], made["state"]) == ("create", "done")
    stay(clean, "thesis", "echo chapter one > ~/draft; mkdir ~/figures; echo x > ~/figures/a.txt")
    assert stay(clean, "thesis", "cat ~/draft") == "chapter one\n"
    assert clean.ask("disk", "delete", "thesis")["state"] == "done"
    assert "thesis" not in clean.run("disk", "list").stdout
    gone = clean.run("disk", "show", "thesis", code=4)
    assert "gpu-dev disk restore thesis" in gone.stderr
    clean.run("disk", "restore", "thesis")
    assert stay(clean, "thesis", "cat ~/draft ~/figures/a.txt") == "chapter one\nx\n"
    clean.ask("disk", "delete", "thesis")
    assert "Creating a new, empty one" in clean.run("reserve", "--disk", "thesis", "--no-wait").stdout
    back = clean.ask("disk", "restore", "thesis", "--as", "thesis-2")
    assert back["disk_name"] == "thesis-2"
    assert stay(clean, "thesis-2", "cat ~/draft") == "chapter one\n"


def test_a_clone_goes_its_own_way(clean: System) -> None:
    stay(clean, "source", "echo common > ~/note")
    copied = clean.run("disk", "clone", "source", "copy")
    assert "Cloned: source to copy." in copied.stdout
    assert stay(clean, "copy", "cat ~/note; echo of the copy > ~/note") == "common\n"
    assert stay(clean, "source", "cat ~/note; echo of the source > ~/note") == "common\n"
    assert stay(clean, "copy", "cat ~/note") == "of the copy\n"


def test_an_older_snapshot_is_restored_and_the_newer_files_are_still_to_be_had(clean: System) -> None:
    stay(clean, "paper", "echo version 1 > ~/text")
    [first] = snapshots(clean, "paper", 1)
    stay(clean, "paper", "echo version 2 > ~/text")
    second, _ = snapshots(clean, "paper", 2)
    restored = clean.ask("disk", "restore", "paper", "--snapshot", first["snapshot_id"][:8])
    assert (restored["kind"], restored["state"]) == ("restore", "done")
    assert stay(clean, "paper", "cat ~/text") == "version 1\n"
    clean.ask("disk", "clone", "paper", "newer", "--snapshot", second["snapshot_id"])
    assert stay(clean, "newer", "cat ~/text") == "version 2\n"


def test_a_disk_in_use_is_kept_and_grows_but_is_neither_deleted_nor_renamed(clean: System) -> None:
    job = clean.ask("reserve", "--gpus", "1", "--hours", "1", "--disk", "live", "--yes")
    clean.run("connect", job["job_id"][:8], "--", "echo early > ~/log")
    clean.ask("disk", "snapshot", "live")
    clean.run("connect", job["job_id"][:8], "--", "echo late > ~/log")
    for arguments in (["delete", "live"], ["rename", "live", "dead"], ["clone", "live", "twin"]):
        refused = clean.run("disk", *arguments, code=5)
        assert job["job_id"][:8] in refused.stderr
    asked = [one for one in snapshots(clean, "live", 1) if one["why"] == "asked"]
    clean.ask("disk", "clone", "live", "earlier", "--snapshot", asked[0]["snapshot_id"])
    assert stay(clean, "earlier", "cat ~/log") == "early\n"
    size = clean.ask("disk", "show", "live")["size_gb"]
    clean.run("disk", "resize", "live", "--size", str(size + 10))
    shown = clean.ask("disk", "show", "live")
    assert (shown["state"], shown["size_gb"], shown["reservation_id"]) == ("in use", size + 10, job["job_id"])
    clean.run("cancel", job["job_id"], "--yes")
    clean.wait_until_released(job["job_id"])
    snapshots(clean, "live", 2)
    clean.ask("disk", "rename", "live", "renamed")
    assert stay(clean, "renamed", "cat ~/log") == "late\n"


def test_what_was_on_a_disk_is_shown(clean: System) -> None:
    stay(clean, "shown", "echo twelve chars > ~/notes.txt")
    snapshots(clean, "shown", 1)

    def look() -> dict[str, Any] | None:
        found = clean.ask("disk", "show", "shown")["contents"]
        return found if found is not None else None

    contents = eventually(look, "there never was a listing")
    assert {"path": "notes.txt", "kind": "file", "size_bytes": 13}.items() <= next(
        entry for entry in contents["entries"] if entry["path"] == "notes.txt"
    ).items()
    assert "notes.txt" in clean.run("disk", "show", "shown").stdout
    assert "notes.txt" in clean.run("disk", "contents", "shown").stdout
