"""What the shell completes, besides disks."""

from pathlib import Path

import pytest

from support.client.cli_process import Cli
from support.client.fake_api import FakeApi, make_type

pytestmark = pytest.mark.slow


def completed(cli: Cli, words: str) -> list[str]:
    """As `kind,value`, as the script for bash reads it."""
    env: dict[str, str | None] = {
        "_GPU_DEV_COMPLETE": "bash_complete",
        "COMP_WORDS": f"gpu-dev {words}",
        "COMP_CWORD": str(len(words.split()) - (not words.endswith(" ")) + 1),
    }
    return cli.run(env=env).stdout.splitlines()


def test_types_settings_and_names_are_completed(cli: Cli, api: FakeApi) -> None:
    api.types = [make_type("a100"), make_type("h100"), make_type("h200", total_cluster_gpus=0)]
    assert completed(cli, "reserve --type h") == ["plain,h100"]
    assert completed(cli, "config set default") == [
        "plain,default_gpu_type",
        "plain,default_hours",
        "plain,default_disk",
    ]
    job = api.add(status="active", name="training")
    assert completed(cli, "status tra") == ["plain,training"]
    assert completed(cli, f"status {job.reservation_id[:2]}") == [f"plain,{job.reservation_id[:8]}"]


def test_no_message_lands_in_the_command_line_after_a_word_that_is_no_command(cli: Cli) -> None:
    env = {"_GPU_DEV_COMPLETE": "bash_complete", "COMP_WORDS": "gpu-dev nosuch ", "COMP_CWORD": "2"}
    assert cli.run(env=dict(env)).stderr == ""


def test_files_and_remote_paths_are_completed_for_cp(cli: Cli, api: FakeApi) -> None:
    api.add(status="active", name="training")
    assert completed(cli, "cp trai") == ["file,trai", "plain,training:"]
    assert completed(cli, "cp ./trai") == ["file,./trai"]


def test_the_help_page_has_sections_and_short_forms(cli: Cli, home: Path) -> None:
    page = cli.run("reserve", "--help").stdout
    for part in ("Hardware and time:", "Files:", "Set-up:", "Waiting:", "-g, --gpus", "-t, --type", "-H, --hours"):
        assert part in page
    assert page.count("--gpus N") == 1


def test_short_forms_are_understood(cli: Cli, api: FakeApi) -> None:
    api.types = [make_type("a100"), make_type("h100")]
    assert cli.run("reserve", "-g", "2", "-t", "H100", "-H", "1h30", "-n", "x", "--no-wait").returncode == 0
    (asked,) = api.requests("POST", "/submit")
    assert (asked.json["gpu_count"], asked.json["gpu_type"]) == (2, "h100")
    assert (asked.json["duration_hours"], asked.json["name"]) == (1.5, "x")
