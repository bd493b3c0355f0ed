"""A cluster of one node on which pods really run, for the tests of `KubernetesCluster`: real containers, real ssh."""

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil

from contracts.cluster_contract import ClusterWorld
from gpudev.adapters.kubernetes.cluster import KubernetesCluster
from gpudev.domain.cluster import load_catalogue
from gpudev.domain.ids import ReservationId, pod_name
from gpudev.domain.reservations.reservation import SshEndpoint
from gpudev.ports.clock import SystemClock
from gpudev.ports.cluster import ServerSpec
from gpudev.settings import KubernetesSettings
from support.deploy.built_images import build_dev_server, why_no_builder
from support.kubernetes.images import DEV_IMAGE, write_image
from support.kubernetes.real_node import RealNode
from support.kubernetes.server_specs import server_spec
from support.polling import eventually_async

INIT_IMAGE = "gpu-dev.test/dev-server:1"


def import_dev_server(node: RealNode, program: Path, folder: Path) -> None:
    """Our own image, by its Dockerfile; where nobody can build that, what it says."""
    if why_no_builder() is None:
        node.import_image(build_dev_server(program, folder, INIT_IMAGE))
        return
    root = folder / "root"
    root.mkdir()
    shutil.copy(program, root / "gpudev-devserver")
    (root / "gpudev-devserver").chmod(0o755)
    node.import_image(write_image(root, folder / "dev-server.tar", name=INIT_IMAGE, command=["/gpudev-devserver"]))


class RealWorld(ClusterWorld):
    cluster: KubernetesCluster

    def __init__(self, node: RealNode, namespace: str, folder: Path) -> None:
        self.node = node
        self.folder = folder
        self.settings = KubernetesSettings(
            access="kubeconfig",
            kubeconfig=str(node.plane.kubeconfig),
            namespace=namespace,
            default_image=DEV_IMAGE,
            init_image=INIT_IMAGE,
            termination_grace=timedelta(seconds=2),
        )
        self.key = folder / "id_ed25519"

    async def __aenter__(self) -> "RealWorld":
        make_key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key)]
        await asyncio.to_thread(subprocess.run, make_key, check=True)
        self.cluster = await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cluster.close()

    async def _open(self) -> KubernetesCluster:
        cluster = KubernetesCluster(self.settings, load_catalogue(), SystemClock())
        await cluster.start()
        return cluster

    def spec(self, *, nodes: int = 1, **changes: Any) -> ServerSpec:
        """There is one node; both members of a gang are there."""
        keys = (self.key.with_suffix(".pub").read_text().strip(),)
        return server_spec(*[self.node.name] * nodes, units=nodes, **{"ssh_public_keys": keys, **changes})

    async def kill(self, reservation_id: ReservationId) -> None:
        """Its first process, from outside: from inside nobody can."""
        for process in psutil.process_iter(["cmdline"]):
            if (process.info["cmdline"] or [])[:2] == ["/gpudev/bin/gpudev-devserver", "serve"]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    if process.environ().get("HOSTNAME") == pod_name(reservation_id):
                        process.kill()

    @contextlib.asynccontextmanager
    async def nobody_watching(self) -> AsyncIterator[None]:
        await self.cluster.close()
        yield
        await asyncio.sleep(1.1)  # kubelets tell times in whole seconds: the next control plane begins in another one
        self.cluster = await self._open()

    def ssh_command(self, connection: SshEndpoint, *arguments: str) -> list[str]:
        known = self.folder / f"known-{connection.port}"
        known.write_text(f"[{connection.host}]:{connection.port} {connection.host_key}\n")
        options = [f"UserKnownHostsFile={known}", "StrictHostKeyChecking=yes", "BatchMode=yes", "IdentitiesOnly=yes"]
        flags = [flag for option in options for flag in ("-o", option)]
        return [
            *("ssh", "-F", "none", *flags, "-i", str(self.key), "-p", str(connection.port)),
            *arguments[:-1],
            f"{connection.user}@{connection.host}",
            *arguments[-1:],
        ]

    async def ssh(self, connection: SshEndpoint, command: str) -> str:
        """The first try may come before kube-proxy knows the way."""
        last_error = ""

        async def answered() -> "subprocess.CompletedProcess[str] | None":
            nonlocal last_error
            result = await asyncio.to_thread(
                subprocess.run, self.ssh_command(connection, command), capture_output=True, text=True, timeout=30
            )
            last_error = result.stderr
            is_final = result.returncode != 255 or "Permission denied" in last_error
            return result if is_final else None

        done = await eventually_async(answered, lambda: f"{command}: ssh does not get in: {last_error}", every=0.1)
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout
