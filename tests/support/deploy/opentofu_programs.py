"""OpenTofu and the providers that infra/ is checked with, built once per machine: no registry has to be reached.

The AWS and Google providers as a whole take an hour and 9 GB to build. What is built here are the same providers, of
the same commits, without the services that infra/ does not use: generated lists of them are shortened and nothing else
is changed, so the schemas and the code of those that are left are the real ones.

They lie in a cache outside the clone, named after what they were built from, and are never seen half built.
GPU_DEV_TOFU_BIN names a folder that has them already.

    python tests/support/deploy/opentofu_programs.py tofu          builds OpenTofu if it is missing and says where it is
    python tests/support/deploy/opentofu_programs.py all           the providers too, as far as they can be built here
"""

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TOFU_MODULE = ROOT / "tests" / "support" / "go_modules" / "opentofu"
TOFU = "github.com/opentofu/opentofu/cmd/tofu"
AWS = "github.com/hashicorp/terraform-provider-aws"
GOOGLE = "github.com/hashicorp/terraform-provider-google"
HELM = "github.com/hashicorp/terraform-provider-helm"
AWS_SERVICES = (
    "autoscaling",
    "cloudfront",
    "ec2",
    "ecr",
    "eks",
    "elbv2",
    "iam",
    "kms",
    "logs",
    "meta",
    "s3",
    "ssm",
    "sts",
)
"""What infra/aws uses."""
_ALWAYS_LINKED = ("organizations", "s3control")
"""Services that those above take functions from."""
GOOGLE_SERVICES = ("artifactregistry", "compute", "container", "resourcemanager", "storage")
"""What infra/gcp uses."""


@dataclass(frozen=True)
class ProviderSet:
    """Providers that are built and kept together."""

    modules: Mapping[str, str]
    """Released majors are not Go modules, so they are pinned by commit."""
    services: tuple[str, ...] = ()

    @property
    def recipe(self) -> bytes:
        return repr((sorted(self.modules.items()), self.services)).encode()


PROVIDERS = {
    "aws": ProviderSet(
        {
            "terraform-provider-aws": f"{AWS}@v1.60.1-0.20260602190131-5f2286d6d836",
            "terraform-provider-null": (
                "github.com/hashicorp/terraform-provider-null@v1.0.1-0.20260824155049-3827b35ad520"
            ),
        },
        AWS_SERVICES,
    ),
    "helm": ProviderSet({"terraform-provider-helm": f"{HELM}@v1.3.3-0.20260629194918-a4f1c1d8b008"}),
    "gcp": ProviderSet(
        {"terraform-provider-google": f"{GOOGLE}@v1.20.1-0.20260828184646-f3721fb45fa3"}, GOOGLE_SERVICES
    ),
}


def find_tofu() -> Path | None:
    program = _place(_recipe_of_tofu(), "tofu")
    return program if program.is_file() else None


def find_providers(name: str) -> Path | None:
    """The folder with those of one set."""
    folder = _place(PROVIDERS[name].recipe, "providers")
    return folder if folder.is_dir() else None


def ensure_tofu() -> Path:
    """Five minutes on two free cores and 2 GB the first time, then nothing."""
    return find_tofu() or _build_once(_place(_recipe_of_tofu(), "tofu"), _build_tofu)


def ensure_providers(name: str) -> Path:
    """AWS's take half an hour more on two busy cores, Google's and Helm's a quarter each."""
    wanted = PROVIDERS[name]
    return find_providers(name) or _build_once(
        _place(wanted.recipe, "providers"), lambda half: _build_providers(wanted, half)
    )


def _build_once(place: Path, build: Callable[[Path], None]) -> Path:
    if "GPU_DEV_TOFU_BIN" in os.environ:
        raise FileNotFoundError(f"GPU_DEV_TOFU_BIN lacks {place.name}")
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            half = place.with_name(f"{place.name}.half")
            shutil.rmtree(half, ignore_errors=True)
            half.unlink(missing_ok=True)
            _say(f"building {place.name} into {place} (once per machine)")
            build(half)
            half.rename(place)
    return place


def _build_tofu(half: Path) -> None:
    # Without this it takes itself for a development build and says so at every start.
    flags = "-s -w -X github.com/opentofu/opentofu/version.dev=no"
    _go("build", "-o", str(half), "-ldflags", flags, TOFU, inside=TOFU_MODULE)


def _build_providers(wanted: ProviderSet, half: Path) -> None:
    half.mkdir()
    for name, module in wanted.modules.items():
        told = json.loads(_go("mod", "download", "-json", module))
        with tempfile.TemporaryDirectory() as scratch:
            source = _copy(Path(told["Dir"]), Path(scratch) / "source")
            if name == "terraform-provider-aws":
                _leave_services_out(source / "internal")
            elif name == "terraform-provider-google":
                _leave_google_services_out(source / "google")
            _go("build", "-o", str(half / name), "-ldflags", "-s -w", ".", inside=source)


def _copy(source: Path, target: Path) -> Path:
    """Without tests, examples and documentation; and writable, which Go's own copy is not."""
    ignored = shutil.ignore_patterns("*_test.go", "testdata", "test-fixtures", "website", "docs", "examples")
    shutil.copytree(source, target, ignore=ignored, copy_function=shutil.copyfile)
    for folder in (target, *(path for path in target.rglob("*") if path.is_dir())):
        folder.chmod(0o755)
    return target


def _leave_services_out(source: Path) -> None:
    """Two generated lists become shorter: the services, and the clients that they may ask for."""
    services = source / "provider" / "sdkv2" / "service_packages_gen.go"
    clients = source / "conns" / "awsclient_gen.go"
    folders = (source / "service" / name for name in (*AWS_SERVICES, *_ALWAYS_LINKED))
    used = _clients_used_in((source / "conns", source / "provider", *folders))
    services.write_text(_keep_services(services.read_text(), AWS_SERVICES))
    clients.write_text(_keep_clients(clients.read_text(), used))


def _leave_google_services_out(source: Path) -> None:
    """Services register themselves where they are imported: that one list becomes shorter."""
    services = source / "provider" / "provider_register_services.go"
    services.write_text(_keep_imports(services.read_text(), GOOGLE_SERVICES))


def _keep_imports(text: str, kept: Iterable[str]) -> str:
    wanted = set(kept)
    return re.sub(r'\t_ "[^"]+/google/services/(\w+)"\n', lambda found: found[0] if found[1] in wanted else "", text)


def _clients_used_in(folders: Iterable[Path]) -> set[str]:
    used = set()
    for folder in folders:
        for file in folder.rglob("*.go"):
            if file.name != "awsclient_gen.go" and not file.name.endswith("_test.go"):
                used.update(re.findall(r"\.(\w+Client)\(ctx", file.read_text()))
    return used


def _keep_services(text: str, kept: Iterable[str]) -> str:
    wanted = set(kept)
    text = re.sub(r'\t"[^"]+/internal/service/(\w+)"\n', lambda found: found[0] if found[1] in wanted else "", text)
    return re.sub(r"\t\t(\w+)\.ServicePackage\(ctx\),\n", lambda found: found[0] if found[1] in wanted else "", text)


def _keep_clients(text: str, used: set[str]) -> str:
    body = re.sub(
        r"func \(c \*AWSClient\) (\w+)\(ctx.*?\n}\n\n?",
        lambda found: found[0] if found[1] in used else "",
        text,
        flags=re.S,
    )
    head, _, functions = body.partition("\n)\n")

    def is_needed(line: str) -> bool:
        found = re.match(r'\t(?:(\w+) )?"([^"]+)"$', line)
        if found is None or "aws-sdk-go-v2/service/" not in line:
            return True
        return re.search(rf"\b{found[1] or found[2].rpartition('/')[2]}\.", functions) is not None

    return "\n".join(line for line in head.split("\n") if is_needed(line)) + "\n)\n" + functions


def _place(recipe: bytes, name: str) -> Path:
    if named := os.environ.get("GPU_DEV_TOFU_BIN"):
        return Path(named) / name
    key = f"{hashlib.sha256(recipe).hexdigest()[:16]}-{platform.system()}-{platform.machine()}".lower()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "gpu-dev" / "tofu" / key / name


def _recipe_of_tofu() -> bytes:
    return b"".join((TOFU_MODULE / name).read_bytes() for name in ("go.mod", "go.sum"))


def _go(*arguments: str, inside: Path = ROOT, environment: dict[str, str] | None = None) -> str:
    """Go with little priority: this is long, and others work here too."""
    nice = ["nice", "-n", "15"] if shutil.which("nice") else []
    started = time.monotonic()
    done = subprocess.run(
        [*nice, str(ROOT / "tools" / "go"), *arguments],
        cwd=inside,
        env={**os.environ, "CGO_ENABLED": "0", **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"go {arguments[0]} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    _say(f"go {arguments[0]} {arguments[-1].rpartition('/')[2]}: {time.monotonic() - started:.0f} s")
    return done.stdout


def _say(text: str) -> None:
    print(f"tofu: {text}", file=sys.stderr, flush=True)


def build(*, with_providers: bool) -> None:
    print(ensure_tofu())
    for name in PROVIDERS if with_providers else ():
        try:
            print(ensure_providers(name))
        except (OSError, RuntimeError) as problem:
            if name == "aws":
                raise
            _say(f"NOT COVERED: {name}'s provider cannot be built here, and what needs it is left out: {problem}")


if __name__ == "__main__":
    try:
        build(with_providers=sys.argv[1:] == ["all"])
    except (OSError, RuntimeError) as problem:
        _say(str(problem))
        sys.exit(1)
