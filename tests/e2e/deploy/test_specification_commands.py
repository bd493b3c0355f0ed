"""kubectl commands that docs/spec.md calls "as printed", typed on a real API server with the chart installed."""

import os
import re
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.deploy.helm_chart import CHART, Helm
from support.kubernetes.control_plane import ControlPlane
from support.polling import eventually
from support.specification import printed_commands

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
# The others need pods that run, end dev servers, or do not return.
TYPED = re.compile(r"(LATEST_JOB=\$\()?kubectl (get|describe|patch|create job) (?!.* -w$)")
CONTROLPLANE = "gpu-controlplane"


@dataclass(frozen=True)
class Shell:
    """Where somebody types: kubectl is there and knows the cluster. The release has namespaces of its own."""

    release: str
    home: Path
    programs: Path
    kubeconfig: Path

    def answer(self, command: str) -> subprocess.CompletedProcess[str]:
        ours = command.replace(CONTROLPLANE, f"{self.release}-control").replace("-n gpu-dev", f"-n {self.release}-work")
        path = f"{self.programs}:{os.environ['PATH']}"
        return subprocess.run(
            ["sh", "-c", ours],
            env={"HOME": str(self.home), "PATH": path, "KUBECONFIG": str(self.kubeconfig)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )


@pytest.fixture
def shell(helm: Helm, plane: ControlPlane, tmp_path: Path) -> Iterator[Shell]:
    name = f"r{uuid.uuid4().hex[:6]}"
    namespaces = {"controlplane": f"{name}-control", "workloads": f"{name}-work"}
    arguments = helm.value_arguments(values={"namespaces": namespaces, "global": {"prefix": name}})
    helm.run("install", name, str(CHART), *arguments, kubeconfig=plane.kubeconfig)
    yield Shell(name, tmp_path, helm.program.parent, plane.kubeconfig)
    helm.run("uninstall", name, kubeconfig=plane.kubeconfig)


def test_what_is_printed_can_be_typed(shell: Shell) -> None:
    printed = [each.command for each in printed_commands() if each.verdict == "as printed"]
    commands = [command for command in printed if TYPED.match(command)]
    assert len(commands) >= 20
    # A job is listed only after it was made.
    for command in sorted(commands, key=lambda command: " create job " not in command):
        type_until_it_works(shell, command)


def type_until_it_works(shell: Shell, command: str) -> None:
    """Controllers make pods and jobs a moment later."""
    answers: list[str] = []

    def works() -> bool:
        done = shell.answer(command)
        answers.append(f"{command}\n{done.stdout}{done.stderr}")
        finds_something = CONTROLPLANE not in command or "=$(" in command or done.stdout.strip() != ""
        return done.returncode == 0 and finds_something

    eventually(works, lambda: answers[-1])
