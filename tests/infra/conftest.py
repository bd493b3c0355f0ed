"""OpenTofu, the providers, and copies of infra/ to be changed."""

import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from infra.programs import ROOT, find_providers, find_tofu
from infra.tofu import Tofu


@pytest.fixture(scope="session")
def tofu_program() -> Path:
    program = find_tofu()
    if program is None:
        pytest.skip("NOT COVERED: OpenTofu is not built on this machine (make test-infra builds it, once)")
    return program


@pytest.fixture(scope="session")
def aws_providers() -> list[Path]:
    return _providers("aws", "helm")


@pytest.fixture(scope="session")
def gcp_providers() -> list[Path]:
    return _providers("gcp", "aws", "helm")  # the null provider comes with AWS's


def _providers(*names: str) -> list[Path]:
    # They may be there and still be left out: what is tried with them takes minutes.
    if os.environ.get("GPU_DEV_TEST_INFRA") != "1":
        pytest.skip("NOT COVERED: what needs the clouds' providers is tested by make test-infra")
    folders = [find_providers(name) for name in names]
    for name, folder in zip(names, folders, strict=True):
        if folder is None:
            pytest.skip(
                f"NOT COVERED: {name}'s provider is not built on this machine (make test-infra builds it, once)"
            )
    return [folder for folder in folders if folder is not None]


@pytest.fixture
def tofu(tofu_program: Path, tmp_path: Path) -> Callable[..., Tofu]:
    """OpenTofu in a folder, with no registry to ask and nothing of this machine's configuration."""

    def inside(folder: Path, environment: dict[str, str] | None = None, providers: Sequence[Path] = ()) -> Tofu:
        config = tmp_path / "tofu.rc"
        named = {
            re.sub(r"^terraform-provider-", "", path.name): path.parent
            for place in providers
            for path in sorted(place.iterdir())
        }
        overrides = "".join(f'    "hashicorp/{name}" = "{place}"\n' for name, place in named.items())
        config.write_text(f"provider_installation {{\n  dev_overrides {{\n{overrides}  }}\n  direct {{}}\n}}\n")
        kept = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
        own = {
            "HOME": str(tmp_path),
            "TF_CLI_CONFIG_FILE": str(config),
            "TF_IN_AUTOMATION": "1",
            "CHECKPOINT_DISABLE": "1",
        }
        return Tofu(tofu_program, folder, {**kept, **own, **(environment or {})})

    return inside


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What of the repository infra/ reads."""
    root = tmp_path / "clone"
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc", ".terraform*", "*.tfstate*", "dist")
    for name in ("infra", "src", "images", "locks"):
        shutil.copytree(ROOT / name, root / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, root / name)
    return root


@pytest.fixture
def aws_without_helm(clone: Path) -> Path:
    """infra/aws, but nothing is installed into the cluster: the local AWS makes none that could be asked."""
    folder = clone / "infra" / "aws"
    (folder.parent / "releases" / "main.tf").write_text('output "installed" {\n  value = {}\n}\n')
    (folder.parent / "releases" / "versions.tofu").write_text("")
    releases = folder / "releases.tf"
    releases.write_text(re.sub(r'provider "helm" \{.*?\n\}\n', "", releases.read_text(), flags=re.DOTALL))
    return folder
