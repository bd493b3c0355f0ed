"""Container images without a registry or a daemon: a folder becomes an archive that `RealNode.import_image` takes.

    write_image(folder, tmp_path / "setup.tar", name="gpu-dev.test/setup:1", command=["/setup"])

The base images of the real node (a pause image and a small Debian to develop in) are built once, as root, into a cache
outside the clone.
"""

import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import tarfile
from pathlib import Path

from support.kubernetes.binaries import MODULE, ROOT

PAUSE_IMAGE = "gpu-dev.test/pause:1"
DEV_IMAGE = "gpu-dev.test/dev:1"
_DEV_PACKAGES = ("sudo", "python3-minimal", "procps", "rsync")
_LEFT_OUT = ("./dev/", "./proc/", "./sys/", "./var/cache/apt/", "./var/lib/apt/lists/")
_MADE = "2026-01-01T00:00:00Z"
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def write_image(folder: Path, archive: Path, *, name: str, command: list[str], keep_owners: bool = False) -> Path:
    """One layer. Everything in it belongs to root unless `keep_owners`; no file carries a time, so that the same folder
    makes the same image."""

    def normalised(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if entry.name.startswith(_LEFT_OUT):
            return None
        entry.mtime = 0
        if not keep_owners:
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = "root"
        return entry

    layer = archive.with_name(f"{archive.name}.layer")
    with tarfile.open(layer, "w") as tar:
        tar.add(folder, arcname=".", filter=normalised)
    with layer.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    config = json.dumps(
        {
            "architecture": _architecture(),
            "os": "linux",
            "created": _MADE,
            "config": {"Cmd": command, "Env": [_PATH]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    half = archive.with_name(f"{archive.name}.half")
    with tarfile.open(half, "w") as tar:
        tar.add(layer, arcname="layer.tar")
        for entry_name, content in ((config_name, config), ("manifest.json", manifest)):
            entry = tarfile.TarInfo(entry_name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    layer.unlink()
    half.rename(archive)
    return archive


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


# --- The base images --------------------------------------------------------------------------------------------


def pause_program() -> Path:
    return _cache() / "pause-root" / "pause"


def base_images() -> list[Path]:
    """Their archives, also where they have not been built yet."""
    packages = hashlib.sha256(" ".join(_DEV_PACKAGES).encode()).hexdigest()[:8]
    return [_cache() / "pause.tar", _cache() / f"dev-{_release()}-{packages}.tar"]


def ensure_base_images() -> None:
    """As root, with debootstrap: a minute and 250 MB, once."""
    pause, dev = base_images()
    pause.parent.mkdir(parents=True, exist_ok=True)
    if not pause.exists():
        pause_program().parent.mkdir(exist_ok=True)
        build = [str(ROOT / "tools" / "go"), "build", "-o", str(pause_program()), "./pause"]
        subprocess.run(build, cwd=MODULE, env={**os.environ, "CGO_ENABLED": "0"}, check=True)
        write_image(pause_program().parent, pause, name=PAUSE_IMAGE, command=["/pause"])
    if not dev.exists():
        root = dev.with_suffix(".root")
        shutil.rmtree(root, ignore_errors=True)
        include = f"--include={','.join(_DEV_PACKAGES)}"
        made = subprocess.run(
            ["debootstrap", "--variant=minbase", include, _release(), str(root)], capture_output=True, check=False
        )
        if made.returncode:
            raise RuntimeError(f"debootstrap failed:\n{made.stdout.decode(errors='replace')[-2000:]}")
        write_image(root, dev, name=DEV_IMAGE, command=["/bin/sleep", "infinity"], keep_owners=True)
        shutil.rmtree(root)


def _cache() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "gpu-dev" / f"kube-images-{_architecture()}"


def _release() -> str:
    return platform.freedesktop_os_release().get("VERSION_CODENAME", "stable")
