"""`gpu-dev config import`: what the infrastructure tells about itself sets a person up."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpudev import paths
from gpudev.cli import config as preferences
from gpudev.cli.app import root
from support.deploy.opentofu import Tofu

TOLD = {"api_url": "https://d1234.cloudfront.net", "cluster_name": "pytorch-gpu-dev-cluster", "region": "us-west-1"}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("AWS_REGION", "us-east-2")
    return paths.config_file({"XDG_CONFIG_HOME": str(tmp_path)})


def test_the_address_is_kept_for_the_region_that_it_is_in(config: Path) -> None:
    done = CliRunner().invoke(root, ["config", "import"], input=json.dumps(TOLD))
    assert done.exit_code == 0, done.output
    assert preferences.load_preferences(config).api_url("us-west-1") == TOLD["api_url"]
    assert preferences.load_preferences(config).api_url("us-east-2") is None
    assert "export AWS_REGION=us-west-1" in done.output


def test_a_second_environment_leaves_the_first_alone(config: Path, tmp_path: Path) -> None:
    production = tmp_path / "production.json"
    production.write_text(json.dumps(TOLD | {"api_url": "https://gpu.example.com", "region": "us-east-2"}))
    for arguments in (["-"], [str(production)]):
        assert CliRunner().invoke(root, ["config", "import", *arguments], input=json.dumps(TOLD)).exit_code == 0
    assert dict(preferences.load_preferences(config).api_urls) == {
        "us-west-1": "https://d1234.cloudfront.net",
        "us-east-2": "https://gpu.example.com",
    }


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("-raw", "cli_config"), ("-json", "cli_config"), ("cli_config",), ("-json",)])
def test_what_tofu_prints_is_taken_however_it_was_asked(
    config: Path, tmp_path: Path, tofu: Callable[..., Tofu], arguments: tuple[str, ...]
) -> None:
    """The output is text that holds JSON: some of these write it as JSON once more."""
    folder = tmp_path / "infra"
    folder.mkdir()
    told = 'jsonencode({ api_url = "https://d1234.cloudfront.net", cluster_name = "gpus", region = "us-west-1" })'
    (folder / "outputs.tf").write_text(
        f'output "cli_config" {{\n  value = {told}\n}}\noutput "vpc_id" {{\n  value = 1\n}}\n'
    )
    program = tofu(folder)
    program.succeed("init")
    program.succeed("apply", "-auto-approve")
    done = CliRunner().invoke(root, ["config", "import"], input=program.succeed("output", "-no-color", *arguments))
    assert done.exit_code == 0, done.output
    assert preferences.load_preferences(config).api_url("us-west-1") == "https://d1234.cloudfront.net"


@pytest.mark.parametrize(
    "text",
    ['"[]"', '{"cli_config": {}}', '{"cli_config": {"value": 7}}', json.dumps(json.dumps(json.dumps(TOLD)))]
    + ["", "[]", "{}", '{"api_url": "https://x.example.com"}', '{"api_url": 1, "region": "us-west-1"}']
    + [json.dumps(TOLD | wrong) for wrong in ({"api_url": "ftp://x"}, {"region": "us west"}, {"region": None})],
)
def test_what_does_not_say_both_is_refused_and_nothing_is_written(config: Path, text: str) -> None:
    done = CliRunner().invoke(root, ["config", "import"], input=text)
    assert done.exit_code != 0
    assert not config.exists()
