"""Which cluster the environment means, where no setting names it."""

import pytest

from gpudev.adapters.local.machine.nodes import LocalNodes, gpu_types, load_nodes
from gpudev.bootstrap.cluster import check_catalogue
from gpudev.domain.cluster import load_catalogue
from gpudev.domain.errors import Invalid
from gpudev.settings import load_settings, on_this_machine

EKS = {"EKS_CLUSTER_NAME": "pytorch-gpu-dev-cluster"}
POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}


@pytest.mark.parametrize(
    ("environ", "cluster", "cloud"),
    [
        ({}, "local", "local"),
        (EKS, "kubernetes", "aws"),
        (POD, "kubernetes", "none"),
        ({**POD, **EKS}, "kubernetes", "aws"),
        ({**EKS, "GPU_DEV_CLOUD": "none"}, "kubernetes", "none"),
        ({**EKS, "GPU_DEV_CLUSTER": "local"}, "local", "local"),
        ({**POD, "GPU_DEV_CLUSTER": ""}, "kubernetes", "none"),
        ({"GPU_DEV_CLUSTER": "kubernetes"}, "kubernetes", "none"),
        (on_this_machine(POD), "local", "local"),
        (on_this_machine({**POD, "GPU_DEV_CLUSTER": ""}), "local", "local"),
        (on_this_machine({"GPU_DEV_CLUSTER": "kubernetes"}), "kubernetes", "none"),
    ],
)
def test_an_eks_cluster_or_a_pod_means_kubernetes_unless_it_is_said_otherwise(
    environ: dict[str, str], cluster: str, cloud: str
) -> None:
    settings = load_settings(environ)
    assert (settings.cluster, settings.cloud) == (cluster, cloud)


def test_what_follows_from_the_cluster_follows_from_the_chosen_one() -> None:
    said = load_settings({**EKS, "GPU_DEV_CLUSTER": "kubernetes", "GPU_DEV_CLOUD": "aws"})
    assert load_settings(EKS) == said
    assert said.kubernetes.disk_driver == "ebs.csi.aws.com"
    assert said.timing.preparing_margin == said.timing.preparing_deadline


def test_commands_take_this_machine_for_the_cluster_only_if_the_catalogue_does() -> None:
    nodes: LocalNodes = load_nodes(None)
    settings = load_settings({})
    with pytest.raises(Invalid, match="EKS_CLUSTER_NAME"):
        check_catalogue(settings, nodes, load_catalogue())
    check_catalogue(settings, nodes, {**load_catalogue(), **{each.name: each for each in gpu_types(nodes)}})
    check_catalogue(load_settings({"GPU_DEV_NODES_FILE": "nodes.toml"}), nodes, load_catalogue())
