"""The init container's image: built from its own Dockerfile, holding one program that needs nothing beside it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from support.deploy.built_images import ARCHITECTURE, DEV_SERVER, BuiltImage, build_image, why_no_builder
from support.deploy.confinement import alone, why_not
from support.ssh.dev_server_program import CannotCompile, compiled_program

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As ./build leaves it. What is for the other kind of machine is only there to be chosen."""
    if why_not := why_no_builder():
        pytest.skip(f"NOT TESTED: {why_not}")
    try:
        compiled = compiled_program()
    except CannotCompile as reason:
        pytest.skip(f"NOT TESTED: {reason}")
    made = tmp_path_factory.mktemp("context")
    (made / "dist").mkdir()
    for architecture in ("amd64", "arm64"):
        program = made / "dist" / f"gpudev-devserver-{architecture}"
        if architecture == ARCHITECTURE:
            shutil.copy(compiled, program)
        else:
            program.write_text("for another machine")
    return made


def test_no_builder_is_told_for_which_machine_before_it_knows() -> None:
    """BuildKit lets a value in the file win over the machine it builds for (docker/buildx#510)."""
    arguments = [line for line in DEV_SERVER.read_text().splitlines() if line.startswith("ARG ")]
    assert arguments == ["ARG TARGETARCH"]


@pytest.mark.parametrize("architecture", ["amd64", "arm64"])
def test_the_image_is_one_program_for_its_machine_and_nobody_in_particular(
    context: Path, tmp_path: Path, architecture: str
) -> None:
    archive = build_image(DEV_SERVER, context, tmp_path / "image.tar", name="x.test/y:1", architecture=architecture)
    image = BuiltImage(archive)
    assert image.config["architecture"] == architecture
    assert (image.config["config"]["User"], image.config["config"]["Entrypoint"]) == (
        "65532:65532",
        ["/gpudev-devserver"],
    )
    assert image.unpack(tmp_path / "root") == ["gpudev-devserver"]
    wanted = context / "dist" / f"gpudev-devserver-{architecture}"
    assert (tmp_path / "root" / "gpudev-devserver").read_bytes() == wanted.read_bytes()


def test_alone_in_its_root_it_installs_itself_as_nobody(context: Path, tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(f"NOT TESTED: {reason}")
    root, volume = tmp_path / "root", tmp_path / "volume"
    BuiltImage(build_image(DEV_SERVER, context, tmp_path / "image.tar", name="x.test/y:1")).unpack(root)
    volume.mkdir()
    volume.chmod(0o777)
    command = alone(root, volume, "/gpudev-devserver", "install", "--to", "/volume")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    installed = volume / "gpudev-devserver"
    assert installed.read_bytes() == (root / "gpudev-devserver").read_bytes()
    assert (installed.stat().st_uid, installed.stat().st_mode & 0o777) == (65532, 0o755)
