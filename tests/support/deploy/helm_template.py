"""Charts rendered by the real Helm."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.kubernetes.binaries import find_binaries


def rendered(chart: Path, values: str) -> list[dict[str, Any]]:
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("NOT COVERED: Helm is not built on this machine (make kube)")
    done = subprocess.run(
        [str(binaries / "helm"), "template", "gpu-dev", str(chart), "--kube-version", "1.34.0", "--values", "-"],
        input=values,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]
