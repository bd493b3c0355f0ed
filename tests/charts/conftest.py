"""Helm, and a Kubernetes of the chart's own: what it installs belongs to whole clusters."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from charts.rendering import Helm
from support.kube import ControlPlane
from support.kube_binaries import find_binaries


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    found = find_binaries()
    if found is None:
        pytest.skip("NO HELM TO TEST WITH: `make kube` builds it (ten minutes, once)")
    return Helm(found / "helm", Path(tmp_path_factory.mktemp("helm")))


@pytest.fixture(scope="session")
def plane(helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("charts") / "kube", audited=True) as plane:
        yield plane
