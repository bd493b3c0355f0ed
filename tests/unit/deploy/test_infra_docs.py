"""What the handbooks tell people to type is there: targets, outputs, variables, files, make targets and commands."""

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

from gpudev.cli.app import root as client
from gpudev.main import cli as server
from support.deploy.handbooks import HANDBOOKS, code_of, text_of
from support.deploy.opentofu_programs import ROOT

INFRA = ROOT / "infra"
CLOUDS = sorted(HANDBOOKS)


def declared(cloud: str, pattern: str) -> set[str]:
    return {
        found if isinstance(found, str) else ".".join(found)
        for file in (INFRA / cloud).glob("*.tf")
        for found in re.findall(pattern, file.read_text(), re.MULTILINE)
    }


@pytest.mark.parametrize("cloud", CLOUDS)
def test_every_target_is_a_resource_or_a_module(cloud: str) -> None:
    targets = {found for code in code_of(cloud) for found in re.findall(r"-target=([\w.\[\]\"]+)", code)}
    if cloud == "aws":
        assert targets >= {"null_resource.api_service_image", "module.releases"}, "the test finds them"
    resources = declared(cloud, r'^resource "(\w+)" "(\w+)"')
    releases = {
        ".".join(found)
        for found in re.findall(r'^resource "(\w+)" "(\w+)"', (INFRA / "releases" / "main.tf").read_text(), re.M)
    }
    modules = {f"module.{name}" for name in declared(cloud, r'^module "(\w+)"')}
    known = resources | modules | {f"module.releases.{name}" for name in releases}
    assert {re.sub(r"\[.*\]$", "", target) for target in targets} <= known


def test_the_targets_that_people_know_from_before_are_told_where_they_are_now() -> None:
    known = declared("aws", r'^resource "(null_resource)" "(\w+)"')
    told = {code for code in code_of("aws") if re.fullmatch(r"null_resource\.\w+", code)}
    assert (
        {
            "null_resource.api_service_image",
            "null_resource.reservation_processor_image",
            "null_resource.availability_updater_build",
        }
        <= told
        <= known
    )


@pytest.mark.parametrize("cloud", CLOUDS)
def test_every_output_that_is_asked_for_is_declared(cloud: str) -> None:
    outputs = declared(cloud, r'^output "(\w+)"')
    asked = {found for code in code_of(cloud) for found in re.findall(r"^(?:.*\(|)tofu output (?:-raw )?(\w+)", code)}
    assert asked and asked <= outputs
    if cloud == "aws":
        listed = re.search(r"^Outputs: (.*?)\n\n", text_of(cloud), re.MULTILINE | re.DOTALL)
        assert listed is not None
        assert set(re.findall(r"`(\w+)`", listed[1])) <= outputs


@pytest.mark.parametrize("cloud", CLOUDS)
def test_every_variable_that_is_set_or_explained_is_declared(cloud: str) -> None:
    variables = declared(cloud, r'^variable "(\w+)"')
    given = {found for code in code_of(cloud) for found in re.findall(r"-var (\w+)=", code)}
    rows = re.search(r"^\| variable \|.*?\n\|-.*?\n(.*?)\n\n", text_of(cloud), re.MULTILINE | re.DOTALL)
    if rows is not None:
        given |= {name for row in rows[1].splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert given and given <= variables
    files = {found for code in code_of(cloud) for found in re.findall(r"-var-file=(\S+)", code)}
    assert all((INFRA / cloud / name).is_file() for name in files)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_every_command_of_ours_is_one_that_there_is(cloud: str) -> None:
    seen = set()
    for code in code_of(cloud):
        for program, group in (("gpu-dev-server", server), ("gpu-dev", client)):
            for found in re.findall(rf"(?:^|[ |(]){program} ([^|);#]+)", code):
                seen.add(program)
                check_command(group, found)
    assert "gpu-dev-server" in seen or cloud == "gcp"


def check_command(command: Any, arguments: str) -> None:
    words = shlex.split(arguments)
    while words and isinstance(command, click.Group):
        if words[0].startswith("-") or words[0] == "…":
            return
        inner = command.get_command(click.Context(command), words[0])
        assert inner is not None, f"{command.name} has no command {words[0]}: {arguments}"
        command = inner
        words.pop(0)
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        if word.startswith("--"):
            assert word.partition("=")[0] in options, f"{command.name} has no option {word}: {arguments}"


@pytest.mark.parametrize("cloud", CLOUDS)
def test_every_file_and_make_target_that_is_named_is_there(cloud: str) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for code in code_of(cloud):
        if found := re.fullmatch(r"make ([\w-]+)", code):
            assert found[1] in targets, code
        if re.fullmatch(r"(?:infra|docs|charts|src|tests|tools)/[\w./-]+", code):
            assert (ROOT / code).exists(), code
    for link in re.findall(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)", text_of(cloud)):
        assert (HANDBOOKS[cloud].parent / Path(link)).is_file(), link
