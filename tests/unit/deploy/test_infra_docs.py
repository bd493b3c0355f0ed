"""What the handbooks tell people to type is there: targets, outputs, variables, files, make targets and commands."""

import re
from pathlib import Path

import pytest

from support.deploy.handbooks import HANDBOOKS, code_of, text_of
from support.deploy.opentofu_programs import ROOT
from support.deploy.printed_commands import INFRA, check_our_commands, declared, targets

CLOUDS = sorted(HANDBOOKS)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_every_target_is_a_resource_or_a_module(cloud: str) -> None:
    named = {found for code in code_of(cloud) for found in re.findall(r"-target=([\w.\[\]\"]+)", code)}
    if cloud == "aws":
        assert named >= {"null_resource.api_service_image", "module.releases"}, "the test finds them"
    assert {re.sub(r"\[.*\]$", "", target) for target in named} <= targets(cloud)


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
    called = set().union(*(check_our_commands(code) for code in code_of(cloud)))
    assert "gpu-dev-server" in called or cloud == "gcp"


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
