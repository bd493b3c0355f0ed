"""`gpu-dev-server` loads a command when it is called, and of the server's parts no more than that one needs."""

import json
import pkgutil
import subprocess
import sys
from importlib import import_module

import click
import pytest

from gpudev import main, server_cli

pytestmark = pytest.mark.slow

_WEB = {"fastapi", "uvicorn", "pydantic", "httpx2", "aiohttp"}
_NEVER_AT_ONCE = _WEB | {"asyncssh", "kubernetes_asyncio", "aiobotocore", "apprise", "google.cloud.compute_v1"}
_FOR_A_DATABASE = {"asyncpg", "gpudev.adapters.postgres.database.pool"}


def loaded_by(command: str) -> set[str]:
    """What is loaded when this command is about to run."""
    script = (
        "import sys, json\nfrom gpudev.main import cli\nimport click\n"
        "assert cli.get_command(click.Context(cli), sys.argv[1])\nprint(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script, command], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("command", "unneeded"),
    [
        ("up", _NEVER_AT_ONCE | _FOR_A_DATABASE | {"structlog", "asyncio", "cryptography"}),
        ("migrate", _NEVER_AT_ONCE | {"gpudev.adapters.postgres.stores", "gpudev.embedded.supervisor", "cryptography"}),
        (
            "users",
            _NEVER_AT_ONCE | {"gpudev.bootstrap", "gpudev.processor", "gpudev.embedded.supervisor", "cryptography"},
        ),
    ],
)
def test_no_command_loads_what_only_others_need(command: str, unneeded: set[str]) -> None:
    loaded = loaded_by(command)
    assert "gpudev.server_cli.command_runtime" in loaded
    assert not unneeded & loaded


def test_every_command_can_be_called_by_its_name() -> None:
    """None is forgotten in the table, and none is promised that is not there."""
    modules = [
        import_module(f"gpudev.server_cli.{module.name}") for module in pkgutil.iter_modules(server_cli.__path__)
    ]
    commands = [value for module in modules for value in vars(module).values() if isinstance(value, click.Command)]
    below = [child for group in commands if isinstance(group, click.Group) for child in group.commands.values()]
    written = {command.name for command in commands if command not in below}
    context = click.Context(main.cli)
    assert set(main.cli.list_commands(context)) == written
    for name in written:
        found = main.cli.get_command(context, name)
        assert found is not None
        assert found.name == name
        assert found.help


def test_help_names_the_command_that_people_type() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpudev.main", "users", "--help"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("Usage: gpu-dev-server users ")
