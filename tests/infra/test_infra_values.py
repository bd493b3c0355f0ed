"""The values that infra/ derives for the chart and for machines, evaluated by OpenTofu without any provider: what a
cloud would have answered is put in its place."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.declarations import AWS_SERVICES, GCP_SERVICES
from infra.helm import rendered
from infra.programs import ROOT
from infra.tofu import Tofu

pytestmark = pytest.mark.slow
ANSWERS = {
    "aws": {
        "data.aws_caller_identity.current.account_id": '"123456789012"',
        "aws_iam_role.service": '{ for name, _ in local.declared.aws.services : name => { arn = "arn:of:${name}" } }',
        "aws_ecr_repository.image[name].name": "image.repository",
        "aws_cloudfront_distribution.api.domain_name": '"d1234.cloudfront.net"',
        "aws_lb.caches.dns_name": '"caches.internal"',
        "aws_eks_cluster.main.name": '"cluster"',
        "aws_eks_cluster.main.endpoint": '"https://eks.example.com"',
        "aws_eks_cluster.main.certificate_authority[0].data": '"Q0E="',
    },
    "gcp": {
        "google_service_account.service": (
            '{ for name, _ in local.declared.gcp.services : name => { email = "of-${name}" } }'
        ),
        "google_artifact_registry_repository.ours.repository_id": '"ours"',
        "google_compute_global_address.api.name": '"address"',
        "google_compute_managed_ssl_certificate.api.name": '"certificate"',
    },
}
FILES = {
    "aws": ("groups.tf", "registries.tf", "images.tf", "chart-values.tf", "entrance.tf", "nodes.tf"),
    "gcp": ("pools.tf", "images.tf", "releases.tf"),
}
VARIABLES = {
    "aws": 'gpu_node_image = "ami-1"\ncpu_node_image = "ami-2"\n',
    "gcp": 'project = "my-project"\napi_domain = "gpu.example.com"\n',
}
MORE = {
    "aws": """
locals {
  primary_zone = "us-west-1a"
}
output "user_data" {
  value = templatefile("${path.module}/node-user-data.tftpl", merge(local.about_cluster, {
    labels = { GpuType = "t4", "gpu-dev/group" = "t4" }
    taints = ["nvidia.com/gpu=true:NoSchedule"]
  }))
}
""",
    "gcp": "",
}


@pytest.fixture
def told(clone: Path, tofu: Callable[..., Tofu]) -> Callable[[str], dict[str, Any]]:
    def evaluate(cloud: str) -> dict[str, Any]:
        source, folder = clone / "infra" / cloud, clone / "infra" / f"{cloud}-without-provider"
        folder.mkdir()
        shutil.copy(source / "variables.tf", folder)
        for template in source.glob("*.tftpl"):
            shutil.copy(template, folder)
        for name in FILES[cloud]:
            (folder / name).write_text(locals_of((source / name).read_text(), ANSWERS[cloud]))
        output = 'output "chart_values" {\n  value = yamlencode(local.chart_values)\n}\n'
        (folder / "told.tf").write_text(output + MORE[cloud])
        (folder / "case.auto.tfvars").write_text(VARIABLES[cloud])
        program = tofu(folder)
        program.succeed("init")
        program.succeed("apply", "-auto-approve", "-no-color")
        return program.outputs()

    return evaluate


def locals_of(text: str, answers: dict[str, str]) -> str:
    """Only what is computed, with answers in place of resources; what needs a resource for itself alone is left out."""
    found = "\n".join(re.findall(r"^locals \{\n.*?^\}\n", text, re.MULTILINE | re.DOTALL))
    for name, value in answers.items():
        found = found.replace(name, value)
    return re.sub(r"^  (entrances|gpu_node_image|cpu_node_image) = (\{.*?^  \}|[^\n]*)\n", "", found, flags=re.M | re.S)


@pytest.mark.parametrize(
    ("cloud", "services", "annotation"),
    [
        ("aws", AWS_SERVICES, "eks.amazonaws.com/role-arn"),
        ("gcp", GCP_SERVICES, "iam.gke.io/gcp-service-account"),
    ],
)
def test_the_chart_takes_what_is_derived_for_it(
    told: Callable[[str], dict[str, Any]], cloud: str, services: dict[str, Any], annotation: str
) -> None:
    objects = rendered(ROOT / "charts" / "gpu-dev-server", told(cloud)["chart_values"])
    accounts = {one["metadata"]["name"]: one["metadata"] for one in objects if one["kind"] == "ServiceAccount"}
    for name in services:
        assert name in accounts[name]["annotations"][annotation]
    assert annotation not in accounts["api-service"].get("annotations", {}), "the API asks the cloud for nothing"
    # The images are ours, each with the tag that says what it is made of.
    images = {
        container["image"]
        for one in objects
        if one["kind"] == "Deployment"
        and one["metadata"]["name"] in ("api-service", "reservation-processor", "ssh-proxy")
        for container in one["spec"]["template"]["spec"]["containers"]
    }
    assert images and all(re.search(r"(amazonaws\.com|pkg\.dev)/[\w/-]+:[0-9a-f]{16}$", image) for image in images)


def test_the_entrance_leads_to_the_pods_of_the_chart(told: Callable[[str], dict[str, Any]]) -> None:
    pods = [
        one["spec"]["template"]["metadata"]["labels"]
        for one in rendered(ROOT / "charts" / "gpu-dev-server", told("aws")["chart_values"])
        if one["kind"] == "Deployment"
    ]
    services = rendered(ROOT / "infra" / "aws" / "entrance", "{}")
    assert {one["spec"]["ports"][0]["nodePort"] for one in services} == {30081, 30050, 30051}
    for service in services:
        wanted = service["spec"]["selector"].items()
        assert sum(wanted <= labels.items() for labels in pods) == 1, service["metadata"]["name"]


def test_a_machine_is_told_its_cluster_its_type_and_the_caches(told: Callable[[str], dict[str, Any]]) -> None:
    text = told("aws")["user_data"]
    parts = text.split("--gpu-dev")
    config = yaml.safe_load(parts[1].partition("\n\n")[2])
    assert config["spec"]["cluster"]["name"] == "cluster"
    assert config["spec"]["kubelet"]["flags"] == [
        "--node-labels=GpuType=t4,gpu-dev/group=t4",
        "--register-with-taints=nvidia.com/gpu=true:NoSchedule",
    ]
    script = parts[2].partition("\n\n")[2]
    assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0
    assert script.startswith("#!/bin/sh\n")
    assert "/etc/containerd/certs.d/ghcr.io/hosts.toml" in script
    assert '[host."http://caches.internal:5000"]' in script
