"""infra/aws with the real provider: its schemas, its logic with a mocked cloud, and what it makes in a local AWS.

The Helm releases are never installed here, because there is no such cluster to install them into. Their values are
looked at: the chart is rendered with them.
"""

import asyncio
import json
import os
import re
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jmespath
import pytest
from botocore.session import get_session
from moto.server import ThreadedMotoServer

from gpudev.adapters.postgres.stores import Stores
from gpudev.settings import DatabaseSettings
from support.deploy.handbooks import code_of
from support.deploy.helm_template import rendered
from support.deploy.infra_declarations import AWS_SERVICES, declarations
from support.deploy.opentofu import Tofu
from support.deploy.opentofu_programs import ROOT
from support.kubernetes.binaries import find_binaries
from support.kubernetes.control_plane import ControlPlane
from support.system.reconcile_commands import Operator

pytestmark = pytest.mark.slow
REGION = "us-west-1"
PREFIX = "pytorch-gpu-dev"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE", "AWS_SECRET_ACCESS_KEY": "not-asked-for"}
ENVIRONMENT = {**CREDENTIALS, "AWS_EC2_METADATA_DISABLED": "true", "NO_PROXY": "127.0.0.1"}
# The local AWS knows nothing of these, so they are left out of what is applied there.
NOT_IN_MOTO = """
resource "aws_eks_addon" "before_nodes" {
  for_each = {}
}
resource "aws_eks_addon" "after_nodes" {
  for_each = {}
}
resource "aws_eks_access_entry" "nodes" {
  count = 0
}
resource "aws_ecr_pull_through_cache_rule" "cache" {
  for_each = {}
}
resource "aws_iam_role_policy_attachment" "cluster" {
  count = 0
}
resource "aws_iam_role_policy_attachment" "node" {
  for_each = toset([])
}
resource "aws_iam_role_policy_attachment" "ebs_csi" {
  count = 0
}
"""
VARIABLES = """
gpu_node_image = "ami-0123456789abcdef0"
cpu_node_image = "ami-0123456789abcdef1"
gpu_groups = {
%s
}
"""
# Without EFA: its placement group is one more thing that the local AWS does not know.
GROUPS = ("t4 = { count = 2 }", "h100 = { count = 0 }", "h100-spot = { count = 1, spot = true }")


@pytest.mark.parametrize(
    "what",
    [
        "the Helm releases are validated and planned, and never installed: there is no EKS here",
        "EKS add-ons and access entries, ECR's pull-through caches, placement groups, attachments of AWS's own "
        "policies: planned but not applied, because moto has none",
        "the launch templates' user data is never run: there is no machine",
    ],
)
def test_what_nothing_here_has_tried(what: str) -> None:
    pytest.skip(f"NOT COVERED: {what}")


def test_the_configuration_is_valid_by_the_providers_own_schemas(
    clone: Path, aws_providers: list[Path], tofu: Callable[..., Tofu]
) -> None:
    for folder in (clone / "infra" / "aws", clone / "infra" / "aws" / "state", clone / "infra" / "releases"):
        program = tofu(folder, providers=aws_providers)
        program.succeed("get")
        program.succeed("validate")


def test_the_logic_holds_with_a_mocked_cloud(clone: Path, aws_providers: list[Path], tofu: Callable[..., Tofu]) -> None:
    program = tofu(clone / "infra" / "aws", providers=aws_providers)
    program.succeed("get")
    assert "Success!" in program.succeed("test", "-no-color", timeout=900)


PRODUCTION = """
run "production" {
  command = plan

  assert {
    condition     = { for name, group in aws_autoscaling_group.gpu : name => group.desired_capacity if group.desired_capacity > 0 } == { a100 = 2 }
    error_message = "Two machines with A100."
  }
  assert {
    condition     = output.supported_gpu_types == tolist(["a100", "b200", "h100", "h200", "l4", "t4"])
    error_message = "Every type has its group."
  }
  assert {
    condition     = keys(output.placement_group_names) == ["a100", "b200", "h100", "h200"]
    error_message = "Those with EFA are close to each other."
  }
  assert {
    condition     = jsondecode(output.cli_config).region == "us-east-2"
    error_message = "It is in us-east-2."
  }
}
"""  # noqa: E501 - OpenTofu's conditions stand on one line


def test_production_is_planned_as_its_file_says(
    clone: Path, aws_providers: list[Path], tofu: Callable[..., Tofu]
) -> None:
    tests = clone / "infra" / "aws" / "tests"
    mocked, _, _ = (tests / "groups.tftest.hcl").read_text().partition('run "')
    (tests / "groups.tftest.hcl").unlink()
    zones = mocked.replace("us-west-1", "us-east-2").replace("us-east-2c", "us-east-2b")
    (tests / "production.tftest.hcl").write_text(zones + PRODUCTION)
    program = tofu(clone / "infra" / "aws", providers=aws_providers)
    program.succeed("get")
    assert "1 passed" in program.succeed("test", "-no-color", "-var-file=prod.tfvars", timeout=900)


@pytest.fixture
def moto() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    opener.open(f"http://{host}:{port}/moto-api/reset", b"").close()  # it outlives its server, and so a failed test
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def applied(
    aws_without_helm: Path, moto: str, aws_providers: list[Path], tofu: Callable[..., Tofu], tmp_path: Path
) -> Callable[..., Tofu]:
    """Applies it to the local AWS with these groups; images count as pushed already."""
    pretended = tmp_path / "bin"
    pretended.mkdir()
    (pretended / "aws").write_text("#!/bin/sh\nexit 0\n")
    (pretended / "aws").chmod(0o755)
    (aws_without_helm / "moto_override.tf").write_text(NOT_IN_MOTO)
    program = tofu(aws_without_helm, {**ENVIRONMENT, "AWS_ENDPOINT_URL": moto}, aws_providers)
    program.environment["PATH"] = f"{pretended}:{program.environment['PATH']}"  # type: ignore[index]
    program.succeed("get")

    def apply(*groups: str) -> Tofu:
        (aws_without_helm / "case.auto.tfvars").write_text(VARIABLES % "\n".join(groups))
        program.succeed("apply", "-auto-approve", "-no-color", timeout=600)
        return program

    return apply


@pytest.fixture
def operator(moto: str, database: DatabaseSettings, tmp_path: Path) -> Iterator[Operator]:
    """Whoever runs gpu-dev-server beside a cluster that no machine has joined yet."""
    if find_binaries() is None:
        pytest.skip("NOT COVERED: the reconciler needs a Kubernetes to look at (make kube builds one, once)")
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("GPU_DEV_", "POSTGRES_", "AWS_", "XDG_"))}
    with ControlPlane(tmp_path / "kube") as kube:
        yield Operator(
            {
                **kept,
                **ENVIRONMENT,
                "AWS_ENDPOINT_URL": moto,
                "AWS_REGION": REGION,
                "POSTGRES_HOST": database.host,
                "POSTGRES_PORT": str(database.port),
                "POSTGRES_USER": database.user,
                "POSTGRES_DB": database.database,
                "GPU_DEV_HOME": str(tmp_path / "state"),
                "GPU_DEV_CLUSTER": "kubernetes",
                "GPU_DEV_KUBE_ACCESS": "kubeconfig",
                "KUBECONFIG": str(kube.kubeconfig),
                "GPU_DEV_CLOUD": "aws",
            }
        )


@pytest.mark.timeout(1500)
async def test_the_reconciler_finds_exactly_the_groups_that_were_applied(
    applied: Callable[..., Tofu], operator: Operator, stores: Stores, moto: str
) -> None:
    program = await asyncio.to_thread(applied, *GROUPS)
    listed = await operator.run("nodes", "groups", "--json")
    assert {one["name"]: (one["desired"], one["in_service"]) for one in json.loads(listed.out)} == {
        f"{PREFIX}-cpu-nodes": (2, 2),
        f"{PREFIX}-gpu-nodes-t4": (2, 2),
        f"{PREFIX}-gpu-nodes-h100": (0, 0),
        f"{PREFIX}-gpu-nodes-h100-spot": (1, 1),
    }
    done = await operator.run("reconcile", "availability", "--json")
    assert done.code == 0, done.err + done.out
    rows = {row.gpu_type: row for row in await stores.catalogue.availability()}
    told = {name: (row.desired_capacity, row.running_instances) for name, row in rows.items() if row.desired_capacity}
    assert told == {"t4": (2, 2), "h100": (1, 1)}
    warnings = json.loads(done.out)["availability"]["warnings"]
    without = {name for name in types_with_gpus() if any(f"-gpu-nodes-{name}*;" in one for one in warnings)}
    assert without == types_with_gpus() - {"t4", "h100"}
    assert not [one for one in warnings if "matches no GPU type" in one]
    await asyncio.to_thread(assert_it_tells_the_truth_about_itself, program, moto)


def assert_it_tells_the_truth_about_itself(program: Tofu, moto: str) -> None:
    outputs = program.outputs()
    assert json.loads(outputs["cli_config"])["api_url"] == outputs["api_service_url"]
    assert outputs["supported_gpu_types"] == ["h100", "t4"]
    assert_policies_are_as_declared(moto)
    assert_the_handbooks_queries_find(moto)
    assert_chart_takes(outputs["chart_values"])
    assert_nothing_else_changes(program)


def assert_the_handbooks_queries_find(moto: str) -> None:
    """What `aws … --query` in the handbook answers, by the same library that the AWS CLI takes."""
    session = get_session()
    session.set_credentials(*CREDENTIALS.values())
    answers = {}
    for code in code_of("aws"):
        if found := re.fullmatch(r"aws ([a-z]+) ([a-z-]+).* --query (?:\"(.+?)\"|'(.+?)').*", code):
            service, operation, *quoted = found.groups()
            if operation == "describe-instance-refreshes":
                continue  # moto has none; our own stub does (integration/clouds/aws/test_instance_refresh.py)
            client = session.create_client(service, region_name=REGION, endpoint_url=moto)
            answers[operation] = jmespath.search(quoted[0] or quoted[1], getattr(client, operation.replace("-", "_"))())
            client.close()
    [distribution] = answers["list-distributions"]
    assert distribution["Domain"].endswith("cloudfront.net") and distribution["Status"]
    assert {one["Name"]: one["Desired"] for one in answers["describe-auto-scaling-groups"]} == {
        f"{PREFIX}-cpu-nodes": 2,
        f"{PREFIX}-gpu-nodes-t4": 2,
        f"{PREFIX}-gpu-nodes-h100": 0,
        f"{PREFIX}-gpu-nodes-h100-spot": 1,
    }


def types_with_gpus() -> set[str]:
    types = declarations()["gpu_types"]
    assert isinstance(types, dict)
    return set(types)


def assert_policies_are_as_declared(moto: str) -> None:
    session = get_session()
    session.set_credentials(*CREDENTIALS.values())
    iam = session.create_client("iam", region_name=REGION, endpoint_url=moto)
    for name, declared in AWS_SERVICES.items():
        policy = iam.get_role_policy(RoleName=f"{PREFIX}-{REGION}-{name}", PolicyName="declared")["PolicyDocument"]
        granted = [action for statement in policy["Statement"] for action in statement["Action"]]
        assert sorted(granted) == sorted(declared)
        trust = iam.get_role(RoleName=f"{PREFIX}-{REGION}-{name}")["Role"]["AssumeRolePolicyDocument"]
        assert f"system:serviceaccount:gpu-controlplane:{name}" in json.dumps(trust)
    iam.close()


def assert_chart_takes(values: str) -> None:
    objects = rendered(ROOT / "charts" / "gpu-dev-server", values)
    accounts = {one["metadata"]["name"]: one["metadata"] for one in objects if one["kind"] == "ServiceAccount"}
    for name in AWS_SERVICES:
        assert accounts[name]["annotations"]["eks.amazonaws.com/role-arn"].endswith(f"role/{PREFIX}-{REGION}-{name}")


def assert_nothing_else_changes(program: Tofu) -> None:
    """In another order nothing is different at all; without one group, it alone goes. What moto does not remember of
    what it was told is planned again each time, so plans are compared with each other."""
    same = planned(program, GROUPS)
    assert planned(program, tuple(reversed(GROUPS))) == same
    without = planned(program, GROUPS[1:])
    gone = {address: change["actions"] for address, change in without.items() if change != same.get(address)}
    assert {address: actions for address, actions in gone.items() if "gpu[" in address} == {
        'aws_autoscaling_group.gpu["t4"]': ["delete"],
        'aws_launch_template.gpu["t4"]': ["delete"],
    }


def planned(program: Tofu, groups: Sequence[str]) -> dict[str, dict[str, Any]]:
    (program.folder / "case.auto.tfvars").write_text(VARIABLES % "\n".join(groups))
    program.succeed("plan", "-out=plan", "-no-color")
    plan = json.loads(program.succeed("show", "-json", "plan"))
    return {one["address"]: one["change"] for one in plan["resource_changes"]}
