"""The chart as Helm renders it, to be looked at by kind and name.

chart = render(binaries, "values-aws.yaml", values={"apiService": {"replicas": 3}})
chart.get("Deployment", "api-service")["spec"]["replicas"]
"""

import json
import os
import subprocess
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from support.kubernetes.binaries import ROOT

CHART = ROOT / "charts" / "gpu-dev-server"
Object = dict[str, Any]
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# A Helm that was built here does not know which Kubernetes it was made for, and takes a very old one.
KUBE_VERSION = ("--kube-version", "1.30.0")


class HelmRefused(AssertionError):
    """What a user reads."""


@dataclass(frozen=True)
class Helm:
    program: Path
    home: Path
    """Nobody's configuration counts here."""
    _rendered: dict[tuple[str, ...], list[Object]] = field(default_factory=dict, hash=False, compare=False)

    def run(self, *arguments: str, kubeconfig: Path | None = None) -> str:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HELM_", "KUBE"))}
        done = subprocess.run(
            [str(self.program), *arguments],
            env={**kept, "HOME": str(self.home), **({"KUBECONFIG": str(kubeconfig)} if kubeconfig else {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        if done.returncode:
            raise HelmRefused(done.stderr + done.stdout)
        return done.stdout

    def render(self, *files: str | Path, values: Object | None = None, release: str = "gpu-dev") -> "Rendered":
        """The same again is not rendered again."""
        arguments = ("template", release, str(CHART), *KUBE_VERSION, *self.value_arguments(*files, values=values))
        if arguments not in self._rendered:
            self._rendered[arguments] = parse(self.run(*arguments))
        return Rendered(deepcopy(self._rendered[arguments]))

    def refusal(self, values: Object) -> str:
        """What is said to whoever gives these values."""
        try:
            self.render(values=values)
        except HelmRefused as refused:
            return str(refused)
        raise AssertionError(f"these values are taken: {values}")

    def value_arguments(self, *files: str | Path, values: Object | None = None) -> list[str]:
        """Files beside the chart go by their names."""
        arguments = [part for file in files for part in ("--values", str(CHART / file))]
        if values is not None:
            given = self.home / f"values-{abs(hash(json.dumps(values, sort_keys=True)))}.json"
            given.write_text(json.dumps(values))
            arguments += ["--values", str(given)]
        return arguments


@dataclass(frozen=True)
class Rendered:
    objects: list[Object]

    def get(self, kind: str, name: str) -> Object:
        found = [one for one in self.objects if (one["kind"], one["metadata"]["name"]) == (kind, name)]
        assert len(found) == 1, f"{len(found)} objects are {kind} {name}"
        return found[0]

    def has(self, kind: str, name: str) -> bool:
        return any((one["kind"], one["metadata"]["name"]) == (kind, name) for one in self.objects)

    def of(self, kind: str) -> list[Object]:
        return [one for one in self.objects if one["kind"] == kind]

    def pods(self) -> Iterator[tuple[str, Object]]:
        """Every pod that comes of it, as (who it is, template)."""
        for one in self.objects:
            match one["kind"]:
                case "Deployment" | "StatefulSet" | "Job":
                    template = one["spec"]["template"]
                case "CronJob":
                    template = one["spec"]["jobTemplate"]["spec"]["template"]
                case "Pod":
                    template = one
                case _:
                    continue
            yield f"{one['kind']} {one['metadata']['name']}", template

    def settings(self) -> dict[str, str]:
        data: dict[str, str] = self.get("ConfigMap", "gpu-dev-settings")["data"]
        return data


def containers(template: Object) -> list[Object]:
    spec = template["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]


def parse(text: str) -> list[Object]:
    return [one for one in yaml.load_all(text, Loader=_LOADER) if one]


def chart_values(file: str = "values.yaml") -> Object:
    found: Object = yaml.load((CHART / file).read_text(), Loader=_LOADER)
    return found
