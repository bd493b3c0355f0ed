"""The programs of a real Kubernetes (support/go_modules/kubernetes/go.mod says which and which release), built once per
machine.

They lie in a cache outside the clone, named after what they were built from, so every clone of one release shares
them and no half-built set is ever seen. `make kube` builds them; GPU_DEV_KUBE_BIN names a folder that has them already.

    python tests/support/kubernetes/binaries.py      builds what is missing and says where it is
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
MODULE = ROOT / "tests" / "support" / "go_modules" / "kubernetes"
PROGRAMS = (
    "etcd",
    "helm",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
    "kwok",
)
_SAY_EVERY_SECONDS = 20.0


def find_binaries() -> Path | None:
    """The folder with all programs, where there is one."""
    folder = _folder()
    return folder if all((folder / name).is_file() for name in PROGRAMS) else None


def ensure_binaries() -> Path:
    """Builds what is missing: about ten minutes and 5 GB of Go caches the first time, then nothing."""
    found = find_binaries()
    if found is not None:
        return found
    folder = _folder()
    if "GPU_DEV_KUBE_BIN" in os.environ:
        raise FileNotFoundError(f"GPU_DEV_KUBE_BIN names {folder}, which lacks some of {', '.join(PROGRAMS)}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return find_binaries() or _build(folder)


def _folder() -> Path:
    named = os.environ.get("GPU_DEV_KUBE_BIN")
    if named:
        return Path(named)
    recipe = b"".join((MODULE / name).read_bytes() for name in ("go.mod", "go.sum"))
    key = f"{hashlib.sha256(recipe).hexdigest()[:16]}-{platform.system()}-{platform.machine()}".lower()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "gpu-dev" / "kube" / key


def _build(folder: Path) -> Path:
    """One call for all: they share most of their packages."""
    half = folder.with_name(f"{folder.name}.half")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir()
    _say(f"building Kubernetes for the tests into {folder} (about ten minutes on two cores, once)")
    release = _go("list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes")
    flags = f"-s -w -X k8s.io/component-base/version.gitVersion={release}"
    _go("build", "-v", "-o", str(half), "-ldflags", flags, "tool")
    (half / "server").rename(half / "etcd")
    half.rename(folder)
    return folder


def _go(*arguments: str) -> str:
    """Go with little priority; tells now and then how far it is, and on failure its last lines."""
    nice = ["nice", "-n", "10"] if shutil.which("nice") else []
    started = said = time.monotonic()
    packages, last = 0, deque[str](maxlen=20)
    with subprocess.Popen(
        [*nice, str(ROOT / "tools" / "go"), *arguments],
        cwd=MODULE,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last.append(line.rstrip())
            packages += not line.startswith("go: ")
            if time.monotonic() - said > _SAY_EVERY_SECONDS:
                said = time.monotonic()
                _say(f"{said - started:.0f} s: {packages} packages, {last[-1]}")
    if process.returncode:
        raise RuntimeError(f"go {arguments[0]} ended with {process.returncode}:\n" + "\n".join(last))
    return last[-1] if last else ""


def _say(text: str) -> None:
    print(f"kube: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        print(ensure_binaries())
    except (OSError, RuntimeError) as problem:
        _say(str(problem))
        sys.exit(1)
