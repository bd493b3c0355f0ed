"""infra/build-image, with a cloud and a builder that only write down what they were asked."""

import os
import subprocess
from pathlib import Path

import pytest

from infra.programs import ROOT

AWS = {"CLOUD": "aws", "REGION": "us-west-1", "REGISTRY": "123456789012.dkr.ecr.us-west-1.amazonaws.com"}
GCP = {"CLOUD": "gcp", "REGISTRY": "us-central1-docker.pkg.dev"}
IMAGE = {"KIND": "server", "IMAGE": "pytorch-gpu-dev-api-service", "TAG": "0123456789abcdef"}


def build(folder: Path, settings: dict[str, str], *, is_there: bool) -> tuple["subprocess.CompletedProcess[str]", str]:
    programs, asked = folder / "bin", folder / "asked"
    programs.mkdir()
    asked.touch()
    for name, code in (("aws", 0 if is_there else 1), ("gcloud", 0 if is_there else 1), ("docker", 1)):
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >>"{asked}"\nexit {code}\n')
        (programs / name).chmod(0o755)
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(folder), **settings}
    done = subprocess.run(
        [ROOT / "infra" / "build-image"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    return done, asked.read_text()


@pytest.mark.parametrize("cloud", [AWS, GCP], ids=["aws", "gcp"])
def test_an_image_that_is_there_is_not_built_again(tmp_path: Path, cloud: dict[str, str]) -> None:
    done, asked = build(tmp_path, cloud | IMAGE, is_there=True)
    assert done.returncode == 0, done.stderr
    assert "0123456789abcdef is there already" in done.stdout
    assert IMAGE["TAG"] in asked and not any(line.startswith("docker") for line in asked.splitlines())


@pytest.mark.parametrize("wrong", [{"CLOUD": "azure"}, {"KIND": "everything"}])
def test_what_it_does_not_know_is_refused_before_anything_is_asked(tmp_path: Path, wrong: dict[str, str]) -> None:
    done, asked = build(tmp_path, AWS | IMAGE | wrong, is_there=False)
    assert done.returncode == 1
    assert next(iter(wrong.values())) in done.stderr
    assert asked == ""
