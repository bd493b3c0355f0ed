"""kubectl as people use it, on a control plane of the tests."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from support.deploy.helm_chart import Object


class KubectlRefused(AssertionError):
    """What a user reads."""


@dataclass(frozen=True)
class Kubectl:
    program: Path
    kubeconfig: Path

    def run(self, *arguments: str, given: str | None = None) -> str:
        done = subprocess.run(
            [str(self.program), "--kubeconfig", str(self.kubeconfig), *arguments],
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if done.returncode or "Warning" in done.stderr:
            raise KubectlRefused(done.stderr + done.stdout)
        return done.stdout

    def try_strictly(self, objects: list[Object]) -> list[str]:
        """Whether the API server would make these, to the last field; answers their names."""
        given = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        strictly = ("create", "--dry-run=server", "--validate=strict", "--output=name", "--filename=-")
        return self.run(*strictly, given=given).splitlines()
