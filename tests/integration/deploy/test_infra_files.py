"""infra/ as far as it can be told without a cloud and without a provider."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.deploy.infra_declarations import CATALOGUE, DECLARED, declarations
from support.deploy.opentofu import Tofu
from support.deploy.opentofu_programs import ROOT

INFRA = ROOT / "infra"
ROOTS = sorted(path.parent for path in INFRA.rglob("versions.tofu"))
OUTPUTS_OF_THE_SPECIFICATION = {
    "vpc_id",
    "subnet_id",
    "eks_cluster_name",
    "eks_cluster_endpoint",
    "eks_cluster_arn",
    "placement_group_names",
    "security_group_id",
    "supported_gpu_types",
    "cli_config",
    "ecr_repository_url",
    "ecr_pull_through_cache_urls",
    "api_service_url",
    "api_service_url_loadbalancer",
    "api_service_loadbalancer_url",
}


def test_what_the_infrastructure_grants_is_what_the_code_declares() -> None:
    assert json.loads(DECLARED.read_text()) == declarations(), "run tools/infra-declarations"


def test_every_gpu_type_of_production_is_one_of_the_catalogue() -> None:
    groups = set(re.findall(r"^  (\w+)\s*= \{ count", (INFRA / "aws" / "prod.tfvars").read_text(), re.MULTILINE))
    assert groups == {"t4", "l4", "a100", "h100", "h200", "b200"}
    assert groups <= set(tomllib.loads(CATALOGUE.read_text()))


def test_every_output_that_people_ask_for_is_there() -> None:
    named = re.findall(r'^output "(\w+)"', (INFRA / "aws" / "outputs.tf").read_text(), re.MULTILINE)
    assert set(named) >= OUTPUTS_OF_THE_SPECIFICATION


def test_nothing_is_known_by_its_place_in_a_list() -> None:
    """`count` is for what is there or not; what there are several of has names."""
    for file in INFRA.rglob("*.tf"):
        for line in file.read_text().splitlines():
            if re.match(r"  count\s*=", line):
                assert re.search(r"\? (1 : 0|0 : 1)$", line), f"{file.name}: {line}"
        assert "count.index" not in file.read_text()


_OWN = ("var.prefix", "local.identity", "local.cluster_name", "local.custom_images", "each.value.repository")
_OF_ANOTHER = {"aws_iam_role_policy", "helm_release"}
"""Whose names are only seen beside what they belong to."""


def test_every_name_is_the_environments_own() -> None:
    """Two environments can be in one account (infra/aws/names.tf). IAM has no regions: there the name has it."""
    looked_at = 0
    for file in [*INFRA.glob("aws/*.tf"), *INFRA.glob("gcp/*.tf")]:
        for kind, title, body in re.findall(r'^resource "(\w+)" "(\w+)" \{\n(.*?)^\}', file.read_text(), re.M | re.S):
            pattern = r"^  (?:name|name_prefix|account_id|role_id|repository_id|bucket)\s*= (.+)$"
            for given in re.findall(pattern, body, re.M) if kind not in _OF_ANOTHER else ():
                looked_at += 1
                assert any(own in given for own in _OWN), f"{kind}.{title}: {given}"
                assert "local.identity" in given or not kind.startswith("aws_iam_"), f"{kind}.{title}: {given}"
    assert looked_at > 30, "the test finds them"


@pytest.mark.parametrize("folder", ROOTS, ids=lambda path: str(path.relative_to(INFRA)))
def test_terraform_is_refused_before_it_reads_anything(folder: Path, tmp_path: Path) -> None:
    refusal = (folder / "versions.tf").read_text()
    assert 'required_version = "< 0.0.1"' in refusal
    terraform = shutil.which("terraform")
    if terraform is None:
        return
    shutil.copytree(folder, tmp_path / "root")
    done = subprocess.run(
        [terraform, "init", "-backend=false", "-no-color"],
        cwd=tmp_path / "root",
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "CHECKPOINT_DISABLE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0
    assert "docs/opentofu-only.md" in done.stdout + done.stderr


@pytest.fixture(scope="module")
def cost() -> ModuleType:
    loader = SourceFileLoader("infra_cost", str(ROOT / "tools" / "infra-cost"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    sys.modules[loader.name] = module = module_from_spec(spec)  # dataclasses look for their module there
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    loader.exec_module(module)
    sys.dont_write_bytecode = before
    return module


@pytest.mark.parametrize(("environment", "expected"), [("test", 7.82), ("production", 49.54), ("google", 5.84)])
def test_the_gpu_machines_cost_what_was_planned(cost: ModuleType, environment: str, expected: float) -> None:
    told = cost.estimate(environment)
    assert round(told.gpu_sum, 2) == expected
    assert told.sum > told.gpu_sum
    assert all(line.price is not None for line in (*told.gpu_machines, *told.others))


def test_every_price_says_when_and_where_it_was_found() -> None:
    prices = json.loads((INFRA / "prices.json").read_text())
    entries = [one for cloud in ("aws", "gcp") for section in prices[cloud].values() for one in section.values()]
    assert len(entries) > 10
    assert all(re.fullmatch(r"\d{4}-\d{2}", entry["as_of"]) and entry["source"] for entry in entries)


@pytest.mark.slow
def test_every_file_is_formatted(tofu: Callable[..., Tofu]) -> None:
    tofu(INFRA).succeed("fmt", "-check", "-recursive", "-diff")


@pytest.fixture
def groups(clone: Path, tmp_path: Path, tofu: Callable[..., Tofu]) -> Callable[[str], dict[str, Any]]:
    """What infra/aws makes of its variables, without a provider: which groups there are."""
    folder = tmp_path / "infra" / "groups"
    folder.mkdir(parents=True)
    for name in ("variables.tf", "groups.tf", "prod.tfvars"):
        shutil.copy(clone / "infra" / "aws" / name, folder / name)
    shutil.copy(DECLARED, folder.parent / "declared.json")
    (folder / "told.tf").write_text(
        'locals {\n  primary_zone = "zone-a"\n}\noutput "groups" {\n  value = local.gpu_groups\n}\n'
    )
    program = tofu(folder)
    program.succeed("init")

    def evaluate(variables: str) -> dict[str, Any]:
        (folder / "case.auto.tfvars").write_text(variables)
        program.succeed("apply", "-auto-approve")
        found: dict[str, Any] = program.outputs()["groups"]
        return found

    return evaluate


@pytest.mark.slow
def test_the_order_of_groups_means_nothing(groups: Callable[[str], dict[str, Any]]) -> None:
    lines = ["h100 = { count = 2, efa = true }", "t4 = { count = 1 }", 'h100-b = { count = 3, zone = "zone-b" }']
    one = groups("gpu_groups = {\n" + "\n".join(lines) + "\n}\n")
    assert groups("gpu_groups = {\n" + "\n".join(reversed(lines)) + "\n}\n") == one
    without = groups("gpu_groups = {\n" + "\n".join(lines[1:]) + "\n}\n")
    assert without == {name: group for name, group in one.items() if name != "h100"}
    assert one["h100-b"]["type"] == "h100" and one["h100-b"]["instance_type"] == "p5.48xlarge"
    assert (one["t4"]["zone"], one["h100-b"]["zone"]) == ("zone-a", "zone-b")


@pytest.mark.slow
def test_the_plain_variables_are_one_group_of_that_machine(groups: Callable[[str], dict[str, Any]]) -> None:
    told = groups('instance_type = "p5.48xlarge"\ngpu_instance_count = 5\n')
    assert {name: (group["type"], group["count"]) for name, group in told.items()} == {"h100": ("h100", 5)}
    production = groups((INFRA / "aws" / "prod.tfvars").read_text())
    assert {name: group["count"] for name, group in production.items() if group["count"]} == {"a100": 2}
