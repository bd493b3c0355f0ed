"""The values that infra/ derives for the chart and for machines, evaluated by OpenTofu without any provider: what a
cloud would have answered is put in its place."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.deploy.helm_template import rendered
from support.deploy.infra_declarations import AWS_SERVICES, GCP_SERVICES
from support.deploy.opentofu import Tofu
from support.deploy.opentofu_programs import ROOT

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
    "aws": (
        "names.tf",
        "groups.tf",
        "registries.tf",
        "images.tf",
        "chart-values.tf",
        "load-balancers.tf",
        "nodes.tf",
        "security.tf",
    ),
    "gcp": ("names.tf", "pools.tf", "images.tf", "releases.tf"),
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
  value = {
    for pages in [0, local.efa_huge_pages] :
    pages => templatefile("${path.module}/node-user-data.tftpl", merge(local.about_cluster, {
      labels     = { GpuType = "t4", "gpu-dev/group" = "t4" }
      taints     = ["nvidia.com/gpu=true:NoSchedule"]
      huge_pages = pages
    }))
  }
}
""",
    "gcp": "",
}


@pytest.fixture
def told(clone: Path, tofu: Callable[..., Tofu]) -> Callable[[str], dict[str, Any]]:
    def evaluate(cloud: str) -> dict[str, Any]:
        source, folder = clone / "infra" / cloud, clone / "infra" / f"{cloud}-without-provider"
        folder.mkdir(exist_ok=True)
        shutil.copy(source / "variables.tf", folder)
        for template in source.glob("*.tftpl"):
            shutil.copy(template, folder)
        for name in FILES[cloud]:
            (folder / name).write_text(locals_of((source / name).read_text(), ANSWERS[cloud]))
        output = 'output "chart_values" {\n  value = yamlencode(local.chart_values)\n}\n'
        output += 'output "inputs" {\n  value = local.inputs\n}\n'
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


@pytest.mark.parametrize("cloud", ["aws", "gcp"])
def test_an_image_is_built_again_exactly_when_what_it_is_made_of_has_changed(
    clone: Path, told: Callable[[str], dict[str, Any]], cloud: str
) -> None:
    def tags() -> tuple[str, str]:
        values = yaml.safe_load(told(cloud)["chart_values"])
        return values["global"]["image"]["tag"], values["devServers"]["initImage"].rpartition(":")[2]

    server, dev_server = tags()
    (clone / "src" / "gpudev" / "__pycache__").mkdir(exist_ok=True)
    for name in ("src/gpudev/__pycache__/main.pyc", "images/dev-server/more_test.go", "infra/notes.txt"):
        (clone / name).write_text("of no image")
    assert tags() == (server, dev_server)
    (clone / "src" / "gpudev" / "main.py").write_text("changed = True\n")
    changed, same = tags()
    assert changed != server and same == dev_server
    (clone / "images" / "dev-server" / "go.mod").write_text("module changed\n")
    assert tags()[0] == changed and tags()[1] != dev_server


@pytest.mark.parametrize("cloud", ["aws", "gcp"])
def test_a_tag_is_made_of_exactly_what_goes_into_the_image(
    clone: Path, told: Callable[[str], dict[str, Any]], cloud: str
) -> None:
    inputs = {kind: set(files) for kind, files in told(cloud)["inputs"].items()}
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "out"], cwd=clone, check=True)
    [wheel] = (clone / "out").glob("*.whl")
    packed = {f"src/{name}" for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    recipe = {"pyproject.toml", "README.md", "LICENSE", "locks/dev.txt"}
    assert inputs["server"] == packed | recipe | {f"images/server/{name}" for name in ("Containerfile", "build")}
    assert inputs["dev-server"] == compiled(clone) | {"locks/go.txt"}


def compiled(clone: Path) -> set[str]:
    """What the dev server's program is made of, by Go's own word, and what makes it."""
    folder = clone / "images" / "dev-server"
    command = [str(ROOT / "tools" / "go"), "list", "-f", _FILES_OF_A_PACKAGE, "./..."]
    listed = subprocess.run(
        command, cwd=folder, env={**os.environ, "GOOS": "linux"}, capture_output=True, text=True, check=True
    )
    sources = {str(Path(name).relative_to(clone)) for name in listed.stdout.split()}
    return sources | {f"images/dev-server/{name}" for name in ("Dockerfile", "build", "go.mod", "go.sum")}


_FILES_OF_A_PACKAGE = "{{range .GoFiles}}{{$.Dir}}/{{.}} {{end}}{{range .EmbedFiles}}{{$.Dir}}/{{.}} {{end}}"


def test_the_load_balancers_lead_to_services_at_fixed_ports(told: Callable[[str], dict[str, Any]]) -> None:
    objects = rendered(ROOT / "charts" / "gpu-dev-server", told("aws")["chart_values"])
    ports = {
        one["metadata"]["name"]: one["spec"]["ports"][0]["nodePort"]
        for one in objects
        if one["kind"] == "Service" and one["spec"].get("type") == "NodePort"
    }
    assert ports == {"api-service-public": 30081, "registry-ghcr": 30050, "registry-dockerhub": 30051}
    assert not [one for one in objects if one["kind"] == "Service" and one["spec"].get("type") == "LoadBalancer"]
    security = (ROOT / "infra" / "aws" / "security.tf").read_text()
    first = re.search(r"first_ssh_port = (\d+)", security)
    assert first is not None and max(ports.values()) < int(first[1]), "people do not reach them"


def test_a_machine_is_told_its_cluster_its_type_and_the_caches(told: Callable[[str], dict[str, Any]]) -> None:
    texts = told("aws")["user_data"]
    assert "hugepages" not in texts["0"]
    text = texts["5128"]
    parts = text.split("--gpu-dev")
    config = yaml.safe_load(parts[1].partition("\n\n")[2])
    assert config["spec"]["cluster"]["name"] == "cluster"
    assert config["spec"]["kubelet"]["flags"] == [
        "--node-labels=GpuType=t4,gpu-dev/group=t4",
        "--register-with-taints=nvidia.com/gpu=true:NoSchedule",
    ]
    script = parts[2].partition("\n\n")[2]
    assert "\necho vm.nr_hugepages=5128 >/etc/sysctl.d/" in script, "for the buffers of EFA"
    assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0
    assert script.startswith("#!/bin/sh\n")
    assert "/etc/containerd/certs.d/ghcr.io/hosts.toml" in script
    assert '[host."http://caches.internal:5000"]' in script
    own_name = "registry-ghcr.gpu-controlplane.svc.cluster.local:5000"
    assert f"/etc/containerd/certs.d/{own_name}/hosts.toml" in script
