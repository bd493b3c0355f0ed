"""docs/spec.md stays true: its rows are complete, and what they name exists."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from support.deploy.printed_commands import INFRA, check_our_commands, check_tofu, targets
from support.paths import ROOT, TESTS
from support.specification import PAGE, code_in, printed_commands, requirements

SOURCE = ROOT / "src" / "gpudev"
REQUIREMENTS = {"A": 4, "B": 106, "C": 162, "D": 15, "E": 27}
"""By document."""
VERDICT = re.compile(r"met|(differently|not yet): .{5,}")
PROGRAMS = {"tofu", "terraform", "aws", "curl", "gpu-dev", "kubectl", "psql", "helm", "docker"}


def test_every_requirement_is_there_once_with_a_verdict() -> None:
    found = requirements()
    assert Counter(each.number[0] for each in found) == REQUIREMENTS
    assert len({each.number for each in found}) == len(found)
    for each in found:
        assert VERDICT.fullmatch(each.verdict), each
        assert all((each.section, each.text, each.where, each.held_by)), each


def test_a_row_that_is_cut_is_noticed() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if re.match(r"\| [A-E]\d+ \|", line)]
    assert len(lines) == sum(REQUIREMENTS.values())


def exists(path: str) -> bool:
    return (ROOT / path).exists() or (SOURCE / path).exists()


def is_path(code: str) -> bool:
    return bool(re.fullmatch(r"[\w./-]+", code)) and ("/" in code or "." in code) and not code.startswith(("/", "~"))


def test_every_path_exists() -> None:
    for each in requirements():
        paths = [code for code in code_in(each.where) if is_path(code)]
        assert paths or each.where == "`LICENSE`", each
        assert [path for path in paths if not exists(path)] == [], each.number
    named = re.search(r"^## Documents\n(.*)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert named is not None
    documents = [code for row in named[1].splitlines()[4:] for code in code_in(row) if is_path(code)]
    assert len(documents) > 15
    assert [path for path in documents if not exists(path)] == []


@cache
def names_below(folder: Path) -> frozenset[str]:
    return frozenset(
        node.name
        for file in folder.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )


def test_every_test_exists() -> None:
    for each in requirements():
        named = code_in(each.held_by)
        assert named, each
        for one in named:
            folder, _, name = one.partition("::")
            assert (TESTS / folder).exists(), each
            assert name in names_below(TESTS / folder) if name else one.endswith(".py"), each


def test_every_command_has_a_verdict_and_what_to_type_instead() -> None:
    commands = printed_commands()
    assert len(commands) > 100
    assert Counter(each.command for each in commands).most_common(1)[0][1] == 1
    printed = " ".join(each.command for each in commands)
    assert {program for program in PROGRAMS if re.search(rf"(^|[ (]){program} ", printed)} == PROGRAMS
    for each in commands:
        assert each.verdict in ("as printed", "instead", "not yet"), each
        assert each.verdict == "as printed" or code_in(each.note), each


def test_a_command_works_when_all_that_it_waits_for_is_met() -> None:
    verdicts = {each.number: each.verdict for each in requirements()}
    for each in printed_commands():
        named = re.findall(r"\b[A-E]\d+\b", each.note)
        assert set(named) <= verdicts.keys(), each
        waits = any(verdicts[number].startswith("not yet") for number in named)
        assert waits == (each.verdict == "not yet"), f"what does it wait for? {each}"


def test_our_own_commands_are_ones_that_there_are() -> None:
    called = [program for each in printed_commands() for code in each.pieces() for program in check_our_commands(code)]
    assert called.count("gpu-dev") >= 8
    assert called.count("gpu-dev-server") >= 5


def test_targets_outputs_and_variables_of_opentofu_are_declared() -> None:
    for each in printed_commands():
        for code in each.pieces():
            check_tofu(code)
    assert "kubernetes_cron_job_v1.availability_updater" not in targets("aws"), "or it works as printed"


def test_charts_and_images_that_are_named_are_there() -> None:
    found = [
        path
        for each in printed_commands()
        for code in each.pieces()
        for path in re.findall(r"(?:^|[ ./])((?:charts|images)/[\w./-]+)", code)
    ]
    assert len(found) > 5
    assert [path for path in found if not exists(path)] == []


@pytest.mark.parametrize(
    "name", ["pytorch-gpu-dev-cluster", "pytorch-gpu-dev-cpu-nodes", "GPU Dev API Service - HTTPS endpoint"]
)
def test_names_of_the_cloud_are_those_of_the_infrastructure(name: str) -> None:
    assert any(name in each.command for each in printed_commands())
    prefix = default_of("prefix").strip('"')
    texts = "".join(file.read_text() for file in (INFRA / "aws").glob("*.tf"))
    assert f'"{name}"' in texts.replace("${var.prefix}", prefix)


@pytest.mark.parametrize(
    ("file", "setting"),
    {
        "no caching": ("aws/load-balancers.tf", 'cache_policy_id = "4135ea2d-6df8-44a3-9df3-4b5a84be39ad"'),
        "HTTP behind CloudFront": ("aws/load-balancers.tf", 'origin_protocol_policy = "http-only"'),
        "unhealthy machines are replaced": ("aws/nodes.tf", 'health_check_type = "EC2"'),
        "Grafana's port": ("aws/security.tf", "grafana = 30080"),
        "gp3 is the default class": ("aws/chart-values.tf", 'class = "gp3", createClass = true, isDefaultClass = true'),
        "the namespace of monitoring": ("releases/main.tf", 'namespace = "monitoring"'),
        "the namespace of the operator": ("releases/main.tf", 'namespace = "gpu-operator"'),
    }.values(),
)
def test_settings_of_the_cloud_are_those_of_the_documents(file: str, setting: str) -> None:
    """AWS's policy "CachingDisabled" has that id everywhere."""
    assert setting in re.sub(r" +", " ", (INFRA / file).read_text())


def test_where_the_infrastructure_differs_its_defaults_are_as_stated() -> None:
    stated = {"loadbalancer_cidrs": "[]", "dockerhub_credential_arn": '""', "api_domain": '""'}
    assert {name: default_of(name) for name in stated} == stated
    assert 'required_version = ">= 1.10.0"' in (INFRA / "aws" / "versions.tofu").read_text()


def default_of(variable: str) -> str:
    text = (INFRA / "aws" / "variables.tf").read_text()
    found = re.search(rf'^variable "{variable}" {{.*?^  default\s*= (.*?)$', text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]
