"""`gpu-dev config`, and which API the settings lead to."""

import json
from pathlib import Path

import pytest

from support.client.cli_process import Cli
from support.client.fake_api import KEY, FakeApi

pytestmark = pytest.mark.slow

NAMES = ["github_user", "api_url", "default_gpu_type", "default_hours", "default_disk"]


def config_file(home: Path) -> Path:
    return home / ".config" / "gpu-dev" / "config.json"


def write_config(home: Path, text: str) -> None:
    config_file(home).parent.mkdir(parents=True, exist_ok=True)
    config_file(home).write_text(text)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("github_user", "octo-cat", "octo-cat"),
        ("api_url", "https://GPU.example.com/", "https://gpu.example.com"),
        ("default_gpu_type", "cpu-x86", "cpu-x86"),
        ("default_hours", "4", "4"),
        ("default_hours", "0.5", "0.5"),
        ("default_disk", "my-disk", "my-disk"),
        ("default_disk", "none", "none"),
    ],
)
def test_what_is_set_is_got_until_it_is_unset(lonely_cli: Cli, name: str, value: str, shown: str) -> None:
    assert lonely_cli.run("config", "set", name, value).returncode == 0
    assert lonely_cli.run("config", "get", name).stdout == f"{shown}\n"
    assert lonely_cli.run("config", "unset", name).returncode == 0
    gone = lonely_cli.run("config", "get", name)
    assert gone.returncode == 4
    assert gone.stdout == ""
    assert f"gpu-dev config set {name}" in gone.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("github_user", ""),
        ("github_user", "-cat"),
        ("github_user", "octo cat"),
        ("github_user", "../etc"),
        ("github_user", "a" * 40),
        ("api_url", "gpu.example.com"),
        ("api_url", "ftp://gpu.example.com"),
        ("api_url", "https://user:secret@gpu.example.com"),
        ("default_gpu_type", "A100!"),
        ("default_hours", "0"),
        ("default_hours", "-1"),
        ("default_hours", "nan"),
        ("default_hours", "inf"),
        ("default_hours", "many"),
        ("default_disk", "My Disk"),
        ("default_disk", "d" * 64),
    ],
)
def test_a_value_that_cannot_be_is_refused_and_nothing_is_written(
    lonely_cli: Cli, home: Path, name: str, value: str
) -> None:
    done = lonely_cli.run("config", "set", "--", name, value)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert not config_file(home).exists()


@pytest.mark.parametrize("command", [["get"], ["set"], ["unset"]])
def test_an_unknown_setting_is_refused_with_the_list(lonely_cli: Cli, command: list[str]) -> None:
    value = ["x"] if command == ["set"] else []
    done = lonely_cli.run("config", *command, "colour", *value)
    assert done.returncode == 2
    assert all(name in done.stderr for name in NAMES)


def test_the_file_is_for_its_owner_alone_and_keeps_what_it_does_not_know(lonely_cli: Cli, home: Path) -> None:
    write_config(home, '{"future": {"a": 1}, "github_user": "cat"}')
    lonely_cli.run("config", "set", "default_hours", "3")
    assert json.loads(config_file(home).read_text()) == {"future": {"a": 1}, "github_user": "cat", "default_hours": 3.0}
    assert config_file(home).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in config_file(home).parent.iterdir()] == ["config.json"], "no temporary file is left"


def test_the_xdg_folder_is_honoured(lonely_cli: Cli, home: Path, tmp_path: Path) -> None:
    lonely_cli.run("config", "set", "github_user", "cat", env={"XDG_CONFIG_HOME": str(tmp_path / "xdg")})
    assert (tmp_path / "xdg" / "gpu-dev" / "config.json").exists()
    assert not config_file(home).exists()


@pytest.mark.parametrize("text", ["{", "[1]", '"text"', "null x"])
def test_a_broken_file_is_named_and_never_overwritten(lonely_cli: Cli, home: Path, text: str) -> None:
    write_config(home, text)
    for arguments in (["config", "show"], ["config", "set", "github_user", "cat"], ["list"]):
        done = lonely_cli.run(*arguments)
        assert done.returncode == 8
        assert str(config_file(home)) in done.stderr
        assert done.stderr.count("\n") == 1
    assert config_file(home).read_text() == text


@pytest.mark.parametrize("text", ['{"github_user": 5}', '{"default_hours": "4"}', '{"api_url": "http://host"}'])
def test_a_value_of_the_wrong_kind_in_the_file_is_named(lonely_cli: Cli, home: Path, text: str) -> None:
    write_config(home, text)
    done = lonely_cli.run("config", "show")
    assert done.returncode == 8
    assert json.loads(text).popitem()[0] in done.stderr


def test_the_apis_address_is_kept_per_region(lonely_cli: Cli, home: Path) -> None:
    west = {"AWS_DEFAULT_REGION": "us-west-1"}
    lonely_cli.run("config", "set", "api_url", "https://east.example.com")
    lonely_cli.run("config", "set", "api_url", "https://west.example.com", env=west)
    lonely_cli.run("config", "set", "api_url", "https://eu.example.com", "--region", "eu-west-1")
    assert json.loads(config_file(home).read_text())["api_url"] == {
        "us-east-2": "https://east.example.com",
        "us-west-1": "https://west.example.com",
        "eu-west-1": "https://eu.example.com",
    }
    assert lonely_cli.run("config", "get", "api_url").stdout == "https://east.example.com\n"
    assert lonely_cli.run("config", "get", "api_url", env=west).stdout == "https://west.example.com\n"
    assert lonely_cli.run("config", "get", "api_url", "--region", "eu-west-1").stdout == "https://eu.example.com\n"
    lonely_cli.run("config", "unset", "api_url", "--region", "eu-west-1")
    assert lonely_cli.run("config", "get", "api_url", "--region", "eu-west-1").returncode == 4
    assert lonely_cli.run("config", "get", "api_url").returncode == 0


@pytest.mark.parametrize(
    "arguments", [["github_user", "cat", "--region", "us-east-2"], ["api_url", "http://h", "--region", "x y"]]
)
def test_a_region_is_for_the_address_alone_and_looks_like_one(lonely_cli: Cli, arguments: list[str]) -> None:
    assert lonely_cli.run("config", "set", *arguments).returncode == 2


def test_show_tells_all_settings_and_which_api_they_lead_to(lonely_cli: Cli, home: Path) -> None:
    lonely_cli.run("config", "set", "github_user", "cat")
    lonely_cli.run("config", "set", "api_url", "https://east.example.com")
    text = lonely_cli.run("config", "show").stdout
    for part in (*NAMES, "cat", "https://east.example.com", "us-east-2", str(config_file(home))):
        assert part in text
    shown = json.loads(lonely_cli.run("config", "show", "--json").stdout)
    assert shown == {
        "github_user": "cat",
        "default_gpu_type": None,
        "default_hours": None,
        "default_disk": None,
        "ssh_config": None,
        "dotfiles": None,
        "startup_script": None,
        "env_file": None,
        "api_url": {"us-east-2": "https://east.example.com"},
        "path": str(config_file(home)),
        "region": "us-east-2",
        "api_url_in_use": "https://east.example.com",
    }


def test_show_says_what_applies_and_where_it_comes_from(lonely_cli: Cli) -> None:
    lonely_cli.run("config", "set", "default-hours", "1h30")
    lonely_cli.run("config", "set", "api_url", "https://east.example.com")
    lines = lonely_cli.run("config", "show").stdout.splitlines()
    assert "default_hours     1.5  (your setting)" in lines
    assert "default_disk      -  (your disk 'default')" in lines
    assert "in use            https://east.example.com  (your setting)" in lines
    other = lonely_cli.run("config", "show", env={"GPU_DEV_API_URL": "https://west.example.com"}).stdout
    assert "https://west.example.com  (from GPU_DEV_API_URL)" in other


def test_show_without_any_api_still_shows(lonely_cli: Cli) -> None:
    done = lonely_cli.run("config", "show")
    assert done.returncode == 0
    assert "gpu-dev up" in done.stdout


def test_each_way_to_name_the_api_reaches_it_in_the_documented_order(
    lonely_cli: Cli, home: Path, api: FakeApi, tmp_path: Path
) -> None:
    """Every level points to the real API while all below it point nowhere."""
    nowhere = "http://127.0.0.1:9"
    state = tmp_path / "state"
    (state / "run").mkdir(parents=True)
    system = state / "run" / "system.json"
    key = {"GPU_DEV_API_KEY": KEY, "GPU_DEV_HOME": str(state)}

    system.write_text(json.dumps({"api_url": api.url}))
    assert lonely_cli.run("list", env=key).returncode == 0

    system.write_text(json.dumps({"api_url": nowhere}))
    lonely_cli.run("config", "set", "api_url", api.url)
    assert lonely_cli.run("list", env=key).returncode == 0

    lonely_cli.run("config", "set", "api_url", nowhere)
    assert lonely_cli.run("list", env={**key, "GPU_DEV_API_URL": api.url}).returncode == 0

    variable = {**key, "GPU_DEV_API_URL": nowhere}
    assert lonely_cli.run("list", "--api-url", api.url, env=variable).returncode == 0
    assert lonely_cli.run("list", env=variable).returncode == 7


def test_the_region_of_the_environment_picks_the_address(lonely_cli: Cli, api: FakeApi) -> None:
    lonely_cli.run("config", "set", "api_url", api.url, "--region", "us-west-1")
    lonely_cli.run("config", "set", "api_url", "http://127.0.0.1:9", "--region", "us-east-2")
    key: dict[str, str | None] = {"GPU_DEV_API_KEY": KEY}
    assert lonely_cli.run("list", env={**key, "AWS_DEFAULT_REGION": "us-west-1"}).returncode == 0
    assert (
        lonely_cli.run("list", env={**key, "AWS_DEFAULT_REGION": "us-east-2", "AWS_REGION": "us-west-1"}).returncode
        == 0
    )
    assert lonely_cli.run("list", env=key).returncode == 7


def test_without_any_api_the_next_steps_are_named(lonely_cli: Cli) -> None:
    done = lonely_cli.run("list")
    assert done.returncode == 8
    assert "gpu-dev up" in done.stderr
    assert "gpu-dev config set api_url" in done.stderr
