"""kill -9 of every part, while reservations are pending, preparing and active: nothing lost, doubled or stuck."""

import time

import pytest

from support.polling import eventually
from support.system.embedded_system import System
from support.system.shell import Shell

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("part", ["processor", "api", "proxy", "postgres"])
def test_a_killed_part_costs_nothing_but_a_moment(clean: System, part: str) -> None:
    active = clean.ask("reserve", "--gpus", "2", "--hours", "1", "--yes")
    with Shell(clean.ssh(active)) as shell:
        assert shell.echo("before") == "before"
        submitted = []
        for wave in range(3):
            # Some are pending and some being prepared at the moment of the kill, and some wait behind them.
            submitted += [submit(clean, gpus) for gpus in (1, 2, 2, 4)]
            clean.kill(part)
            assert shell.echo(f"wave {wave}") == f"wave {wave}"
        settled = eventually(lambda: settle(clean, submitted), f"something is stuck after {part} was killed")
        assert set(settled.values()) <= {"active", "queued"}
        running = {
            job["job_id"]: job for job in clean.ask("list", "--limit", "200")["jobs"] if job["status"] == "active"
        }
        assert sum(job["gpu_count"] for job in running.values()) <= 8
        taken = [index for job in running.values() for share in job["nodes"] for index in share["gpu_indices"]]
        assert len(taken) == len(set(taken)), "two reservations hold one GPU"
        servers = {path.name for path in (clean.home / "state" / "servers").iterdir()}
        assert servers == set(running), "a dev server too many or too few"
        assert len(running) >= 3
        assert shell.echo("after") == "after"
    clean.run("cancel", "--all", "--yes")
    for job_id in [active["job_id"], *submitted]:
        assert clean.wait_until_released(job_id)["status"] == "cancelled"
    assert list((clean.home / "state" / "servers").iterdir()) == []


def test_the_next_one_starts_at_once_after_postgres_came_back(clean: System) -> None:
    """PGMQ's notifications survive a crash of the server: starting does not wait for the sweep."""
    clean.kill("postgres")
    eventually(clean.ready, "the API is not ready again")
    job = clean.ask("reserve", "--gpus", "1", "--hours", "1", "--yes")
    assert job["status"] == "active"


def test_not_ready_is_said_while_the_database_is_away(clean: System) -> None:
    clean.pause("postgres")
    try:
        eventually(lambda: not clean.ready(), "ready was claimed without a database")
        assert clean.live()
        begun = time.monotonic()
        clean.run("list", code=7)
        assert time.monotonic() - begun < 20, "whoever asks is told within seconds, not when they have given up"
    finally:
        clean.resume("postgres")
    eventually(clean.ready, "it did not become ready again")


def submit(system: System, gpus: int) -> str:
    """Through the client, which tries again by itself while a part is away."""

    def attempt() -> str | None:
        done = system.run(
            "reserve", "--gpus", str(gpus), "--hours", "1", "--disk", "none", "--no-wait", "--yes", "--json", code=None
        )
        return system.parse(done)["job_id"] if done.returncode == 0 else None

    return eventually(attempt, "submitting did not work for 30 s")


def settle(system: System, ids: list[str]) -> dict[str, str] | None:
    listed = system.run("list", "--limit", "200", "--json", code=None)
    if listed.returncode != 0:
        return None
    found = {job["job_id"]: job["status"] for job in system.parse(listed)["jobs"] if job["job_id"] in ids}
    moving = [status for status in found.values() if status in ("pending", "preparing")]
    return None if moving or found.keys() != set(ids) else found
