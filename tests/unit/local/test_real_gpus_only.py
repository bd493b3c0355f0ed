"""A machine's real GPUs are never replaced by simulated ones."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpudev.adapters.local.machine.nodes import LocalNodes, load_nodes
from gpudev.bootstrap import cluster
from gpudev.bootstrap.cluster import get_local_nodes
from gpudev.domain.errors import Unavailable
from gpudev.settings import Settings


def test_a_driver_that_does_not_answer_any_more_is_no_reason_to_simulate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated = load_nodes(None)
    if simulated.has_real_gpus:
        pytest.skip("NOT TESTED: this machine has real GPUs, and its driver cannot be taken away for a test")
    settings = Settings(state_dir=tmp_path)
    assert get_local_nodes(settings) == simulated
    real = LocalNodes((replace(simulated.nodes[0], nvml=(0,), simulated=False),), "NVML")
    monkeypatch.setattr(cluster, "load_nodes", lambda _: real)
    assert get_local_nodes(settings) == real
    monkeypatch.setattr(cluster, "load_nodes", lambda _: simulated)
    with pytest.raises(Unavailable, match="do not answer"):
        get_local_nodes(settings)
    described = replace(settings, nodes_file=tmp_path / "nodes.toml")
    assert get_local_nodes(described) == simulated, "a file says what there is"
