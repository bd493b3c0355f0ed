"""infra/build-image, with a cloud and a builder that only write down what they were asked."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support.deploy.opentofu_programs import ROOT

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
    assert "0123456789abcdef already exists" in done.stdout
    assert IMAGE["TAG"] in asked and not any(line.startswith("docker") for line in asked.splitlines())


@pytest.mark.parametrize("wrong", [{"CLOUD": "azure"}, {"KIND": "everything"}])
def test_what_it_does_not_know_is_refused_before_anything_is_asked(tmp_path: Path, wrong: dict[str, str]) -> None:
    done, asked = build(tmp_path, AWS | IMAGE | wrong, is_there=False)
    assert done.returncode == 1
    assert next(iter(wrong.values())) in done.stderr
    assert asked == ""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A clone in which nothing is really built: the parts say what they were asked for."""
    root = tmp_path / "clone"
    parts = {
        "tools/bootstrap": "",
        "images/server/build": 'mkdir -p "$1"; echo wheel >"$1/gpu_dev.whl"',
        "images/dev-server/build": 'mkdir -p "$(dirname "$1")"; echo program >"$1"',
    }
    for name, more in parts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        write(root / name, f'echo "{name} $*" >>"$ASKED"\n{more}')
    (root / "infra").mkdir()
    shutil.copy(ROOT / "infra" / "build-image", root / "infra")
    programs = tmp_path / "bin"
    programs.mkdir()
    absent = 'case "$*" in *describe*) exit 1 ;; *) echo a-password ;; esac'
    for name in ("aws", "gcloud"):
        write(programs / name, absent)
    # What it is given: the folder it builds from, or its standard input.
    looks = 'case "$1" in build) for last; do :; done; ls "$last/dist" >>"$ASKED" ;; login) cat >>"$ASKED" ;; esac'
    write(programs / "docker", f'echo "docker $*" >>"$ASKED"\n{looks}\n[ "$1" != "$FAILS" ]')
    return tmp_path


def write(program: Path, text: str) -> None:
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)


def run(tree: Path, settings: dict[str, str], fails: str = "", path: str = "") -> tuple[int, list[str], str]:
    asked, scratch = tree / "asked", tree / "scratch"
    asked.touch()
    scratch.mkdir()
    environment = {
        "TMPDIR": str(scratch),
        "PATH": path or f"{tree / 'bin'}:/usr/bin:/bin",
        "HOME": str(tree),
        "ASKED": str(asked),
        "FAILS": fails,
    }
    done = subprocess.run(
        [tree / "clone" / "infra" / "build-image"],
        env=environment | settings,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, asked.read_text().splitlines(), done.stderr


@pytest.mark.parametrize(
    ("cloud", "user", "kind", "made"),
    [
        (AWS, "AWS", "server", ["gpu_dev.whl"]),
        (GCP, "oauth2accesstoken", "dev-server", ["gpudev-devserver-amd64", "gpudev-devserver-arm64"]),
    ],
    ids=["aws", "gcp"],
)
def test_an_image_is_built_from_what_was_put_together_and_pushed(
    tree: Path, cloud: dict[str, str], user: str, kind: str, made: list[str]
) -> None:
    code, asked, errors = run(tree, cloud | IMAGE | {"KIND": kind})
    assert code == 0, errors
    name = f"{cloud['REGISTRY']}/{IMAGE['IMAGE']}:{IMAGE['TAG']}"
    login = asked.index(f"docker login --username {user} --password-stdin {cloud['REGISTRY']}")
    assert asked[login + 1] == "a-password"
    build = next(line for line in asked if line.startswith("docker build"))
    assert f" -t {name} " in build and f"/images/{kind}/" in build
    assert asked[asked.index(build) + 1 : -1] == made, "nothing else is sent to the builder"
    assert asked[-1] == f"docker push {name}"
    assert not list((tree / "scratch").iterdir()), "its folder is gone"


@pytest.mark.parametrize("step", ["login", "build", "push"])
def test_a_step_that_fails_is_told(tree: Path, step: str) -> None:
    code, asked, _ = run(tree, AWS | IMAGE, fails=step)
    assert code != 0
    assert [line for line in asked if line.startswith("docker ")][-1].startswith(f"docker {step}")


@pytest.mark.parametrize(("missing", "said"), [("aws", "needs aws"), ("docker", "needs docker or podman")])
def test_a_program_that_is_missing_is_told_before_anything_is_built(tree: Path, missing: str, said: str) -> None:
    (tree / "bin" / missing).unlink()
    only = tree / "only"
    only.mkdir()
    for name in ("sh", "dirname", "mktemp", "rm", "mkdir", "cat", "ls"):
        found = shutil.which(name)
        assert found is not None
        (only / name).symlink_to(found)
    code, asked, errors = run(tree, AWS | IMAGE, path=f"{tree / 'bin'}:{only}")
    assert code == 1 and said in errors
    assert asked == []
