"""What the client loads: no more than a laptop needs, and the help page almost nothing."""

import importlib.util
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpudev.cli import overview
from gpudev.wire.queue import ClusterPlan
from support.client.cli_process import Cli
from support.client.fake_api import FakeApi

pytestmark = pytest.mark.slow

LIGHT = ("click", "questionary", "prompt_toolkit", "wcwidth")
HEAVY = {
    "pydantic",
    "fastapi",
    "asyncpg",
    "asyncssh",
    "httpx2",
    "uvicorn",
    "structlog",
    "psutil",
    "rich",
    "questionary",
    "subprocess",
}


@pytest.fixture
def light_cli(cli: Cli, tmp_path: Path) -> Cli:
    """The program where only the light client is installed."""
    folder = tmp_path / "site"
    folder.mkdir()
    for name in LIGHT:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        (folder / name).symlink_to(Path(spec.origin).parent)
    source = Path(overview.__file__).resolve().parents[2]
    cli.program = [sys.executable, "-S", "-m", "gpudev.cli"]
    cli.env["PYTHONPATH"] = f"{source}{os.pathsep}{folder}"
    return cli


def loaded_by(cli: Cli, *arguments: str) -> set[str]:
    script = (
        "import sys\nfrom gpudev.cli.main import run\n"
        "code = run(sys.argv[1:])\nsys.stdout.flush()\nmodules = sorted(sys.modules)\n"
        "import json\nprint(json.dumps([code, modules]), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], env=cli.environment(), capture_output=True, text=True, check=True
    )
    code, modules = json.loads(done.stderr)
    assert code == 0
    return set(modules)


def test_the_help_page_is_shown_without_the_argument_parser(cli: Cli) -> None:
    modules = loaded_by(cli, "--help")
    assert not {"click", "json", "http.client", "pathlib", "dataclasses"} & modules


@pytest.mark.parametrize(
    "arguments",
    [
        ["list"],
        ["avail"],
        ["avail", "--plan"],
        ["status"],
        ["priority", "3f2a", "5"],
        ["reserve", "--no-wait"],
        ["reserve", "--help"],
        ["config", "show"],
        ["disk", "list"],
        ["disk", "create", "data"],
        ["reserve", "--no-wait", "--disk", "data"],
    ],
)
def test_no_command_loads_what_only_a_server_or_a_screen_needs(cli: Cli, api: FakeApi, arguments: list[str]) -> None:
    api.add(status="active", reservation_id="3f2a9c1e-0000-4000-8000-000000000000")
    now = datetime.now(UTC)
    api.plan = ClusterPlan(begins=now, until=now, gpu_types=[])
    modules = loaded_by(cli, *arguments)
    assert not HEAVY & modules
    assert not [name for name in modules if name.startswith("gpudev.adapters")]


def test_only_the_plan_pays_for_its_drawing(cli: Cli, api: FakeApi) -> None:
    assert not {name for name in loaded_by(cli, "avail") if "chart" in name or "timeline" in name}


def test_the_light_client_does_everything_but_serve(light_cli: Cli, api: FakeApi) -> None:
    now = datetime.now(UTC)
    api.plan = ClusterPlan(begins=now, until=now, gpu_types=[])
    api.on_submit = lambda api, job: api.activate(job.reservation_id) and None
    for arguments in (
        ["reserve", "--gpus", "2"],
        ["list"],
        ["status"],
        ["avail"],
        ["avail", "--plan"],
        ["config", "show"],
        ["disk", "create", "data"],
        ["disk", "show", "data"],
        ["cancel", "--all", "--yes"],
    ):
        done = light_cli.run(*arguments)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["up", "down"])
def test_without_the_server_parts_up_says_what_to_install(light_cli: Cli, command: str) -> None:
    done = light_cli.run(command)
    assert done.returncode == 8
    assert "pip install 'gpu-dev[server]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_quick_help_page_is_the_one_the_parser_shows(lonely_cli: Cli) -> None:
    quick = lonely_cli.run("--help")
    slow = subprocess.run(
        [sys.executable, "-c", "import sys; from gpudev.cli.app import invoke; sys.exit(invoke(['--help']))"],
        env=lonely_cli.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert quick.returncode == slow.returncode == 0
    assert quick.stdout == slow.stdout == overview.help_page()


def test_every_command_has_a_help_page_and_a_place_on_the_first_one(lonely_cli: Cli) -> None:
    assert list(overview.SUMMARIES) == list(overview.LOCATIONS)
    for name in set(overview.SUMMARIES) - {"up", "down"}:
        done = lonely_cli.run(name, "--help")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"Usage: gpu-dev {name} ")
        assert name in overview.help_page()
    assert max(len(line) for line in overview.help_page().splitlines()) <= 80
