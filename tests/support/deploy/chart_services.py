"""The services as processes, with the settings, commands and service accounts that the chart installed: what pods would
be, but for the image. The API server itself enforces their rights, and writes down what they ask for.

    installed = Installed(plane, api, database, folder, changes)
    await installed.prepare()
    await installed.start("api-service")
"""

import asyncio
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpudev.settings import DatabaseSettings
from support.deploy.helm_chart import Object
from support.kubernetes.api import KubeApi
from support.kubernetes.control_plane import ControlPlane
from support.kubernetes.processes import Processes
from support.ports import free_port
from support.system.embedded_system import SERVER, System

CONTROLPLANE = "gpu-controlplane"
Asked = tuple[str, str, str, str]
"""(service account, API group, resource or resource/subresource, verb)"""


@dataclass
class Installed:
    plane: ControlPlane
    api: KubeApi
    database: DatabaseSettings
    folder: Path
    changes: dict[str, str]
    """Settings beside those of the chart: what takes minutes takes seconds."""
    people: System = field(init=False)
    _processes: Processes = field(init=False)
    metrics: dict[str, str] = field(default_factory=dict)
    """Where each process tells its metrics and health: the pods' port, but one for each on this one machine."""
    _kubeconfigs: dict[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        home = self.folder / "home"
        (home / ".gpu-dev").mkdir(parents=True)
        key = home / ".gpu-dev" / "id_ed25519"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        self._processes = Processes(self.folder)
        self._port = free_port()
        self.people = System(home, {})

    async def prepare(self) -> None:
        """What kubelets would give to pods: settings from the ConfigMap, a token of the pod's account."""
        found = await self.api.get("configmaps", "gpu-dev-settings", CONTROLPLANE)
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("GPU_DEV_", "POSTGRES_", "XDG_", "AWS_", "EKS_", "KUBE"))
        }
        here = {
            "HOME": str(self.people.home),
            "GPU_DEV_HOME": str(self.folder / "state"),
            "GPU_DEV_API_HOST": "127.0.0.1",
            "GPU_DEV_API_PORT": str(self._port),
            "GPU_DEV_API_URL": f"http://127.0.0.1:{self._port}",
            "GPU_DEV_KUBE_ACCESS": "kubeconfig",
            "POSTGRES_HOST": self.database.host,
            "POSTGRES_PORT": str(self.database.port),
            "POSTGRES_DB": self.database.database,
        }
        self.people.environment.update({**kept, **found["data"], **self.changes, **here})
        self.people.environment.pop("KUBECONFIG", None)

    async def arguments(self, kind: str, name: str) -> tuple[dict[str, str], list[str]]:
        """Of an installed Deployment, CronJob or Job: its environment, and what its container runs."""
        one = await self.api.get(kind, name, CONTROLPLANE)
        template = one["spec"]["jobTemplate"]["spec"]["template"] if kind == "cronjobs" else one["spec"]["template"]
        [container] = template["spec"]["containers"]
        assert container["command"] == ["gpu-dev-server"]
        said = {one["name"]: one.get("value", "") for one in container["env"]}
        environment = await self._environment(template["spec"]["serviceAccountName"])
        if "POSTGRES_USER" in said:  # its role in the database
            environment["POSTGRES_USER"] = said["POSTGRES_USER"]
        return environment, container["args"]

    async def start(self, name: str) -> None:
        """A Deployment's process."""
        environment, arguments = await self.arguments("deployments", name)
        self.metrics[name] = environment["GPU_DEV_METRICS_ADDRESS"] = f"127.0.0.1:{free_port()}"
        self._processes.start(name, *SERVER.command, *arguments, environment=environment)

    async def run(self, kind: str, name: str, *more: str) -> Any:
        """A Job's or a CronJob's process, to its end."""
        environment, arguments = await self.arguments(kind, name)
        done = await asyncio.to_thread(
            subprocess.run,
            [*SERVER.command, *arguments, *more],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, f"{name} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return json.loads(done.stdout) if "--json" in more else done.stdout

    async def operate(self, *arguments: str) -> str:
        """What an operator runs in the pod `toolbox`."""
        environment = await self._environment("toolbox")
        command = [*SERVER.command, *arguments]
        done = await asyncio.to_thread(
            subprocess.run, command, env=environment, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, f"{arguments} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return str(done.stdout)

    def stop(self, name: str) -> None:
        self._processes.stop(name, signal.SIGTERM)

    def stop_all(self) -> None:
        self._processes.stop_all(signal.SIGKILL)

    def log(self, name: str) -> str:
        return self._processes.log_tail(name, 40)

    def check(self) -> None:
        self._processes.check()

    async def _environment(self, account: str) -> dict[str, str]:
        if account not in self._kubeconfigs:
            assert await self.api.find("serviceaccounts", account, CONTROLPLANE), f"there is no account {account}"
            token = await self.api.service_account_token(account, CONTROLPLANE)
            self._kubeconfigs[account] = self.plane.kubeconfig_with(token=token)
        return {**self.people.environment, "KUBECONFIG": str(self._kubeconfigs[account])}


def asked_for(plane: ControlPlane, since: int, is_meant: Callable[[Object], bool] = lambda _: True) -> Counter[Asked]:
    """What the chart's accounts asked the API server for, by its own audit log, from that place in it on."""
    found: Counter[Asked] = Counter()
    written, _, _ = plane.audit_log.read_bytes()[since:].rpartition(b"\n")  # the last line may be half a one
    for line in written.splitlines():
        event = json.loads(line)
        who = event["user"]["username"]
        what = event.get("objectRef")
        if not who.startswith(f"system:serviceaccount:{CONTROLPLANE}:") or what is None or not is_meant(event):
            continue
        part = f"/{what['subresource']}" if "subresource" in what else ""
        found[who.rpartition(":")[2], what.get("apiGroup", ""), what["resource"] + part, event["verb"]] += 1
    return found


def end_of_log(plane: ControlPlane) -> int:
    return plane.audit_log.stat().st_size if plane.audit_log.exists() else 0


def was_refused(event: Object) -> bool:
    return bool(event.get("responseStatus", {}).get("code") in (401, 403))
