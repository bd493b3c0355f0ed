"""Images built from their own Containerfiles by buildah, where nothing has to come from a registry.

    build_image(containerfile, context, tmp_path / "image.tar", name="gpu-dev.test/dev-server:1")

The archive is in OCI's own layout, as `RealNode.import_image` takes it. Needs root; storage is thrown away.
"""

import json
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.kubernetes.binaries import ROOT

DEV_SERVER = ROOT / "images" / "dev-server" / "Dockerfile"
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def why_no_builder() -> str | None:
    if os.geteuid() != 0:
        return "images are built by root"
    if shutil.which("buildah") is None:
        return "there is no buildah: `make kube` installs it with apt-get"
    return None


def build_dev_server(program: Path, folder: Path, name: str) -> Path:
    """The init container's image of this program, as its Dockerfile says."""
    (folder / "dist").mkdir()
    shutil.copy(program, folder / "dist" / f"gpudev-devserver-{ARCHITECTURE}")
    return build_image(DEV_SERVER, folder, folder / "dev-server.tar", name=name)


def build_image(
    containerfile: Path, context: Path, archive: Path, *, name: str, architecture: str = ARCHITECTURE
) -> Path:
    with tempfile.TemporaryDirectory(prefix="gpu-dev-images-") as storage:
        buildah = ["buildah", "--root", f"{storage}/root", "--runroot", f"{storage}/run", "--storage-driver", "vfs"]
        building = ["build", "--isolation", "chroot", "--platform", f"linux/{architecture}", "--timestamp", "0"]
        _run(*buildah, *building, "--file", str(containerfile), "--tag", name, str(context))
        _run(*buildah, "push", name, f"oci-archive:{archive}:{name}")
    return archive


@dataclass(frozen=True)
class BuiltImage:
    """What is in an archive, by its digests."""

    archive: Path

    @property
    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._blob(self._manifest["config"]))
        return found

    def unpack(self, folder: Path) -> list[str]:
        """All layers, one over the other; answers the names of the files in them."""
        names = []
        for layer in self._manifest["layers"]:
            packed = folder.with_name(f"{folder.name}.layer")
            packed.write_bytes(self._blob(layer))
            with tarfile.open(packed) as tar:
                names += [entry.name for entry in tar if entry.isfile()]
                tar.extractall(folder, filter="tar")
        return names

    @property
    def _manifest(self) -> dict[str, Any]:
        [only] = json.loads(self._read("index.json"))["manifests"]
        found: dict[str, Any] = json.loads(self._blob(only))
        return found

    def _blob(self, described: dict[str, Any]) -> bytes:
        return self._read("blobs/" + described["digest"].replace(":", "/"))

    def _read(self, name: str) -> bytes:
        with tarfile.open(self.archive) as tar:
            file = tar.extractfile(name)
            assert file is not None, name
            return file.read()


def _run(*command: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}")
