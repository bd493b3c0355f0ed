"""Where credentials come from, and what nobody pays for who does not use Kubernetes."""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from gpudev.adapters.kubernetes.client import cluster_credentials
from gpudev.settings import KubernetesSettings, load_settings


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in a pod with a service account."""
    token = tmp_path / "token"
    token.write_text("token")
    monkeypatch.setattr(cluster_credentials, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


def source(**settings: str) -> str:
    return cluster_credentials.choose_credential_source(KubernetesSettings(**settings)).description  # type: ignore[arg-type]


@pytest.mark.usefixtures("inside")
def test_inside_the_service_account_is_used_unless_a_kubeconfig_is_named() -> None:
    assert source() == "the pod's service account"
    assert source(eks_cluster_name="gpus") == "the pod's service account"
    assert source(kubeconfig="/a/file") == "kubeconfig /a/file"


@pytest.mark.usefixtures("outside")
def test_outside_a_named_kubeconfig_comes_before_eks_before_the_usual_one() -> None:
    assert source(kubeconfig="/a/file", eks_cluster_name="gpus") == "kubeconfig /a/file"
    assert source(eks_cluster_name="gpus") == "EKS cluster gpus"
    assert source() == "kubeconfig ~/.kube/config"


@pytest.mark.usefixtures("inside")
def test_what_is_chosen_is_chosen() -> None:
    assert source(access="eks", eks_cluster_name="gpus", kubeconfig="/a/file") == "EKS cluster gpus"


def test_settings_come_from_the_environment() -> None:
    settings = load_settings(
        {
            "KUBECONFIG": "/a/file",
            "GPU_DEV_KUBE_CONTEXT": "prod",
            "EKS_CLUSTER_NAME": "gpus",
            "AWS_REGION": "eu-west-1",
            "GPU_DEV_NAMESPACE": "dev",
            "GPU_DEV_TOLERATED_TAINTS": "nvidia.com/gpu, team",
            "GPU_DEV_STALE_AFTER": "30",
            "EFS_SUBNET_IDS": "subnet-1,subnet-2",
        }
    )
    read = settings.kubernetes
    assert (read.kubeconfig, read.context, read.namespace) == ("/a/file", "prod", "dev")
    assert (read.eks_cluster_name, settings.aws.region) == ("gpus", "eu-west-1")
    assert read.tolerated_taints == ("nvidia.com/gpu", "team")
    assert read.efs_subnet_ids == ("subnet-1", "subnet-2")
    assert read.stale_after.total_seconds() == 30
    assert load_settings({}).kubernetes == KubernetesSettings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GPU_DEV_KUBE_ACCESS", "magic"),
        ("GPU_DEV_NODE_ADDRESS", "best"),
        ("GPU_DEV_STALE_AFTER", "soon"),
        ("GPU_DEV_STALE_AFTER", "1"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name):
        load_settings({name: value})


@pytest.mark.parametrize("seconds", ["2", "5", "15", "300"])
def test_a_watch_gives_a_sign_of_life_before_it_counts_as_stale(seconds: str) -> None:
    settings = load_settings({"GPU_DEV_STALE_AFTER": seconds}).kubernetes
    assert settings.watch_timeout < settings.stale_after
    assert settings.watch_timeout <= timedelta(seconds=10)


@pytest.mark.slow
def test_who_does_not_use_kubernetes_does_not_load_its_client() -> None:
    """It takes seconds and 80 MB."""
    script = """
import sys, gpudev.cli.main, gpudev.main, gpudev.bootstrap.processor, gpudev.bootstrap.api, gpudev.embedded
sys.exit(", ".join({"kubernetes_asyncio", "botocore", "aiohttp"} & sys.modules.keys()) or None)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
