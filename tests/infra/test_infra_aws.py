"""infra/aws with the real provider: its schemas, its logic with a mocked cloud, and what it makes in a local AWS.

Not covered, because no provider for it can be built here: the Helm releases themselves. Their values are: the chart is
rendered with them.
"""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from botocore.session import get_session
from moto.server import ThreadedMotoServer

from aws.world import send_to
from gpudev.adapters.aws.cloud import AwsCloud
from gpudev.planning.reconcile_availability import group_prefix, sort_groups
from gpudev.settings import AwsSettings
from infra.declarations import AWS_SERVICES, declarations
from infra.programs import ROOT
from infra.tofu import Tofu
from support.kube_binaries import find_binaries

pytestmark = pytest.mark.slow
REGION = "us-west-1"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE", "AWS_SECRET_ACCESS_KEY": "not-asked-for"}
IMAGES = 'gpu_node_image = "ami-0123456789abcdef0"\ncpu_node_image = "ami-0123456789abcdef1"\n'
NOT_IN_MOTO = ("aws_eks_addon", "aws_eks_access_entry", "aws_eks_access_policy_association")
"""What the local AWS knows nothing of, and is therefore left out of what is applied there."""


def test_the_configuration_is_valid_by_the_providers_own_schemas(
    aws_without_helm: Path, providers: Path, tofu: Callable[..., Tofu]
) -> None:
    for folder in (aws_without_helm, aws_without_helm / "state"):
        program = tofu(folder, providers=providers)
        program.succeed("get")
        program.succeed("validate")


def test_the_logic_holds_with_a_mocked_cloud(
    aws_without_helm: Path, providers: Path, tofu: Callable[..., Tofu]
) -> None:
    program = tofu(aws_without_helm, providers=providers)
    program.succeed("get", "-test-directory=tests")
    assert "Success!" in program.succeed("test", "-no-color", timeout=600)
