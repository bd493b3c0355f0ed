"""Whether a command that a page prints means something: of our own programs, of kubectl, of OpenTofu."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import click

from gpudev.cli.app import root as client
from gpudev.main import cli as server
from support.deploy.helm_chart import Object
from support.deploy.opentofu_programs import ROOT

INFRA = ROOT / "infra"
CONTROLPLANE = "gpu-controlplane"
NAMESPACES = {"gpu-dev", CONTROLPLANE, "monitoring", "gpu-operator", "kube-system"}
_KINDS = {
    "deployment": "Deployment",
    "statefulset": "StatefulSet",
    "cronjob": "CronJob",
    "pvc": "PersistentVolumeClaim",
    "svc": "Service",
    "service": "Service",
    "secret": "Secret",
}


def check_our_commands(code: str) -> set[str]:
    """Answers which of our programs it calls."""
    called: set[str] = set()
    if code.startswith("helm "):  # there gpu-dev is a release
        return called
    for program, group in (("gpu-dev-server", server), ("gpu-dev", client)):
        for arguments in re.findall(rf"(?:^|[ |(]){program} ([^|);#]+)", code):
            called.add(program)
            check_command(group, arguments)
    return called


def check_command(command: Any, arguments: str) -> None:
    words = shlex.split(arguments)
    while words and isinstance(command, click.Group):
        if words[0].startswith("-") or words[0] == "…":
            return
        inner = command.get_command(click.Context(command), words[0])
        assert inner is not None, f"{command.name} has no command {words[0]}: {arguments}"
        command = inner
        words.pop(0)
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        if word.startswith("--"):
            assert word.partition("=")[0] in options, f"{command.name} has no option {word}: {arguments}"


def declared(cloud: str, pattern: str) -> set[str]:
    """What the files of infra/CLOUD declare."""
    return {
        found if isinstance(found, str) else ".".join(found)
        for file in (INFRA / cloud).glob("*.tf")
        for found in re.findall(pattern, file.read_text(), re.MULTILINE)
    }


def targets(cloud: str) -> set[str]:
    """Everything that `-target` can name."""
    resource = r'^resource "(\w+)" "(\w+)"'
    modules = {f"module.{name}" for name in declared(cloud, r'^module "(\w+)"')}
    return declared(cloud, resource) | modules | {f"module.releases.{name}" for name in declared("releases", resource)}


def check_tofu(code: str, cloud: str = "aws") -> None:
    for target in re.findall(r"-target=([\w.\[\]\"]+)", code):
        assert re.sub(r"\[.*\]$", "", target) in targets(cloud), code
    for output in re.findall(r"tofu output (?:-raw )?(\w+)", code):
        assert output in declared(cloud, r'^output "(\w+)"'), code
    for variable in re.findall(r"TF_VAR_(\w+)|-var[ =]\"?(\w+)=", code):
        assert "".join(variable) in declared(cloud, r'^variable "(\w+)"'), code
    for file in re.findall(r"-var-file=\"?([\w.]+)", code):
        assert (INFRA / cloud / file).is_file(), code


def check_kubectl(command: str, objects: list[Object]) -> None:
    """Namespaces, labels of pods and names of objects are those that the chart makes."""
    inside = re.search(r" (?:-n|--namespace)[ =](\S+)", command)
    assert inside is None or inside[1] in NAMESPACES or inside[1].isupper(), command
    if inside is None or inside[1] != CONTROLPLANE:
        return
    for app in re.findall(r"-l app=([\w-]+)", command):
        assert app in apps(objects), command
    for kind, name in _named_objects(command):
        assert name in names(objects, _KINDS[kind]), command
    pods = {f"{name}-0" for name in names(objects, "StatefulSet")}
    assert set(re.findall(r"\b(postgres-[a-z]+-\d)\b", command)) <= pods, command


def _named_objects(command: str) -> Iterator[tuple[str, str]]:
    """Both `svc/NAME` and `get svc NAME`."""
    kinds = "|".join(_KINDS)
    yield from re.findall(rf"\b({kinds})/([\w-]+)", command)
    words = [word for word in re.sub(r" (?:-n|--namespace)[ =]\S+", "", command).split() if not word.startswith("-")]
    if len(words) > 3 and words[2] in _KINDS and re.fullmatch(r"[a-z][\w-]+", words[3]):
        yield words[2], words[3]


def apps(objects: list[Object]) -> set[str]:
    """Labels that pods of ours bear."""
    found = set()
    for one in objects:
        spec = one.get("spec") or {}
        template = (spec.get("jobTemplate", {}).get("spec", {}) or spec).get("template") or {}
        found |= {template.get("metadata", {}).get("labels", {}).get("app")}
    return found - {None}


def names(objects: list[Object], kind: str) -> set[str]:
    return {one["metadata"]["name"] for one in objects if one["kind"] == kind}
