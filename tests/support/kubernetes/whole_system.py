"""The whole system on Kubernetes, used as people use it: API and processor as processes of their own with their
settings in the environment, a real PostgreSQL, and the client's command line.

    async with system_on(kubeconfig, database, folder, namespace=...) as system:
        job = await system.ask("reserve", "--gpus", "1", "--yes")
"""

import asyncio
import contextlib
import fcntl
import itertools
import os
import signal
import subprocess
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from gpudev.adapters.kubernetes.objects.labels import member_name
from gpudev.adapters.postgres.database.pool import connect
from gpudev.adapters.postgres.stores import Stores, open_stores
from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import PLANNING_LEASE
from gpudev.domain.reservations.reservation import Reservation
from gpudev.embedded.postgres import EmbeddedPostgres
from gpudev.settings import DatabaseSettings, Settings
from support.kubernetes.api import KubeApi, Object
from support.kubernetes.control_plane import Cluster, ExistingCluster
from support.kubernetes.fake_nodes import FakeNodes
from support.kubernetes.processes import Processes
from support.polling import eventually_async
from support.ports import free_port
from support.system.embedded_system import SERVER, System

_T = TypeVar("_T")
Job = dict[str, Any]
KINDS = ("pods", "services", "secrets", "networkpolicies")
OURS = "app.kubernetes.io/managed-by=gpu-dev"
SHORT = {
    "GPU_DEV_PREPARING_DEADLINE": "8",
    "GPU_DEV_PREPARING_MARGIN": "2",
    "GPU_DEV_TEARDOWN_MARGIN": "2",
    "GPU_DEV_ORPHAN_GRACE": "3",
    "GPU_DEV_SWEEP_EVERY": "1",
    "GPU_DEV_RETRY_BACKOFF": "0.3",
    "GPU_DEV_NODE_LOST_AFTER": "4",
    "GPU_DEV_UNSCHEDULABLE_AFTER": "2",
    "GPU_DEV_STALE_AFTER": "5",
    "GPU_DEV_LEASE_TTL": "2",
}
"""Whatever takes minutes in real life takes seconds."""


@dataclass
class KubeSystem:
    """Everything about it is asked through the client; what is in the cluster, of the API server itself."""

    people: System
    api: KubeApi
    stores: Stores
    namespace: str
    _processes: Processes

    # --- As a person does it ------------------------------------------------------------------------------------

    async def run(self, *arguments: str, code: int | None = 0, **changes: str) -> tuple[str, str]:
        """What the client wrote to standard output and standard error."""
        done = await asyncio.to_thread(self.people.run, *arguments, code=code, **changes)
        return done.stdout, done.stderr

    async def ask(self, *arguments: str, **changes: str) -> Job:
        return await asyncio.to_thread(self.people.ask, *arguments, **changes)

    async def reserve(self, *arguments: str, **changes: str) -> Job:
        """Until it is ready."""
        return await self.ask("reserve", "--hours", "1", "--yes", *arguments, **changes)

    async def submit(self, *arguments: str, **changes: str) -> Job:
        return await self.ask("reserve", "--hours", "1", "--yes", "--no-wait", *arguments, **changes)

    async def status(self, job: Job) -> Job:
        return await self.ask("status", job["job_id"])

    async def events(self, job: Job) -> list[Job]:
        found: list[Job] = (await self.ask("status", job["job_id"], "--events"))["events"]
        return found

    async def until(self, job: Job, status: str, *, seconds: float = 60) -> Job:
        """Read from the database as often as it takes, and then told by the client."""
        await self.see(
            job, lambda row: row.status.value == status, f"{job['job_id']} did not become {status}", seconds=seconds
        )
        return await self.status(job)

    async def released(self, *jobs: Job, seconds: float = 60) -> None:
        for job in jobs:
            await self.see(job, lambda row: row.is_released, f"{job['job_id']} was not released", seconds=seconds)

    async def see(
        self, job: Job, is_so: Callable[[Reservation], bool], otherwise: str, *, seconds: float = 60
    ) -> Reservation:
        rid = ReservationId(uuid.UUID(job["job_id"]))

        async def look() -> Reservation | None:
            row = await self.stores.reservations.find_reservation(rid)
            return row if row is not None and is_so(row) else None

        try:
            return await eventually_async(look, otherwise, within=seconds)
        except AssertionError as late:
            row = await self.stores.reservations.find_reservation(rid)
            events = await self.stores.reservations.events(rid)
            story = "\n".join(f"{event.at:%H:%M:%S.%f} {event.kind}: {event.message}" for event in events)
            raise AssertionError(f"{late}; it is {row and (row.status, row.step)}\n{story}\n{self.log()}") from None

    async def clear(self) -> None:
        """End everything, and see that nothing at all is left of it."""
        await self.run("cancel", "--all", "--yes", code=None)

        async def look() -> bool | None:
            return True if not await self.stores.reservations.unreleased() else None

        await eventually_async(look, f"not everything was released\n{self.log()}")
        assert await self.objects() == {kind: [] for kind in KINDS}

    # --- As an operator does it ---------------------------------------------------------------------------------

    def start_processor(self, **changes: str) -> None:
        self._processes.start(
            "processor", *SERVER.command, "processor", environment={**self.people.environment, **changes}
        )

    def stop_processor(self) -> None:
        self._processes.stop("processor", signal.SIGTERM)

    def kill_processor(self) -> None:
        self._processes.stop("processor", signal.SIGKILL)

    async def planning(self) -> None:
        """Until a processor holds the lease."""

        async def look() -> bool | None:
            self._processes.check()
            return await self.stores.leases.is_held(PLANNING_LEASE) or None

        await eventually_async(look, f"no processor plans\n{self.log()}")

    async def sees_nodes(self, *names: str) -> None:
        """Until the API tells exactly these."""

        async def look() -> bool | None:
            nodes, _ = await self.stores.nodes.nodes()
            return {node.name for node in nodes if node.offers} == set(names) or None

        await eventually_async(look, f"the system does not see {names}\n{self.log()}")

    def log(self, lines: int = 40) -> str:
        return self._processes.log_tail("processor", lines)

    # --- What is really there -----------------------------------------------------------------------------------

    async def objects(self) -> dict[str, list[Object]]:
        """All of ours, by kind; the namespace's own policies are nobody's."""
        found = {kind: await self.api.list(kind, self.namespace, selector=OURS) for kind in KINDS}
        return {kind: [one for one in all_ if _owner(one) is not None] for kind, all_ in found.items()}

    async def pods(self) -> dict[str, Object]:
        return {one["metadata"]["name"]: one for one in (await self.objects())["pods"]}

    async def check_objects(self) -> None:
        """No lost, doubled or orphaned one: what is in the cluster is what the database says, and nothing else."""
        rows = [row for row in await self.stores.reservations.unreleased() if row.shares]
        wanted = {
            "pods": {
                (member_name(row.pod_name, share.rank), str(row.reservation_id)) for row in rows for share in row.shares
            },
            "services": {(name, str(row.reservation_id)) for row in rows for name in _services(row)},
            "secrets": {(row.pod_name, str(row.reservation_id)) for row in rows},
            "networkpolicies": {(f"{r.pod_name}-gang", str(r.reservation_id)) for r in rows if len(r.shares) > 1},
        }
        found = await self.objects()
        for kind, names in wanted.items():
            there = sorted((one["metadata"]["name"], _owner(one)) for one in found[kind])
            assert there == sorted(names), f"{kind}\n{self.log()}"
        for row in rows:
            for share in row.shares:
                pod = next(p for p in found["pods"] if p["metadata"]["name"] == member_name(row.pod_name, share.rank))
                assert pod["spec"].get("nodeName") in (share.node, None), "it is not where the plan has it"


def _services(row: Reservation) -> list[str]:
    return [row.pod_name] if len(row.shares) == 1 else [row.pod_name, f"{row.pod_name}-gang"]


def _owner(one: Object) -> str | None:
    owner: str | None = one["metadata"]["labels"].get("gpu-dev/reservation-id")
    return owner


@contextlib.asynccontextmanager
async def alone_on(kube: Cluster, shared: Path) -> AsyncIterator[KubeApi]:
    """The tests' own client, as admin, while nobody else uses the cluster."""
    lock_file = (shared if isinstance(kube, ExistingCluster) else kube.folder) / "kube-in-use.lock"
    with lock_file.open("w") as lock:
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        api = await KubeApi.connect(kube.kubeconfig)
        yield api
        await api.close()


@contextlib.asynccontextmanager
async def nodes_of(kube: Cluster, api: KubeApi, count: int = 3) -> AsyncIterator[FakeNodes]:
    """Nodes of 8 GPUs under names nobody else uses."""
    nodes = FakeNodes(api, kube.node_mark, kwok_port=kube.kwok_port, suffix=f"-{uuid.uuid4().hex[:6]}")
    try:
        await nodes.add_many("n", count, gpus=8, gpu_type="h100")
        yield nodes
    finally:
        await nodes.remove_all()


@contextlib.asynccontextmanager
async def fresh_database(postgres: EmbeddedPostgres) -> AsyncIterator[DatabaseSettings]:
    template = postgres.database_settings()
    fresh = replace(template, database=f"system_{next(_numbers)}")
    admin = await connect(replace(template, database="postgres"))
    await admin.execute(f'CREATE DATABASE "{fresh.database}" TEMPLATE "{template.database}" STRATEGY FILE_COPY')
    yield fresh
    await admin.execute(f'DROP DATABASE "{fresh.database}" WITH (FORCE)')
    await admin.close()


_numbers = itertools.count(1)


@contextlib.asynccontextmanager
async def system_on(
    kubeconfig: Path, api: KubeApi, database: DatabaseSettings, folder: Path, *, namespace: str, **settings: str
) -> AsyncIterator[KubeSystem]:
    """`settings`: environment variables beside `SHORT`. `kubeconfig`: what the processor is given."""
    home = folder / "home"
    key = home / ".gpu-dev" / "id_ed25519"
    key.parent.mkdir(parents=True)
    await asyncio.to_thread(subprocess.run, ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    port = free_port()
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("GPU_DEV_", "POSTGRES_", "XDG_", "AWS_", "EKS_"))}
    environment = {
        **kept,
        "HOME": str(home),
        "GPU_DEV_HOME": str(folder / "state"),
        "GPU_DEV_API_URL": f"http://127.0.0.1:{port}",
        "GPU_DEV_API_PORT": str(port),
        "GPU_DEV_CLUSTER": "kubernetes",
        "GPU_DEV_NAMESPACE": namespace,
        "KUBECONFIG": str(kubeconfig),
        **_reached_by(database),
        **SHORT,
        **settings,
    }
    people = System(home, environment)
    processes = Processes(folder)
    stores = open_stores(Settings(database=database, state_dir=folder / "state"))
    system = KubeSystem(people, api, stores, namespace, processes)
    try:
        environment["GPU_DEV_API_KEY"] = await asyncio.to_thread(people.add_user, "ada")
        processes.start("api", *SERVER.command, "api", environment=environment)
        system.start_processor()
        await system.planning()
        await eventually_async(lambda: _answers(people), "the API does not answer")
        yield system
    finally:
        await stores.close()
        await asyncio.to_thread(processes.stop_all, signal.SIGKILL)


def _reached_by(database: DatabaseSettings) -> dict[str, str]:
    named = {
        "POSTGRES_HOST": database.host,
        "POSTGRES_PORT": str(database.port),
        "POSTGRES_USER": database.user,
        "POSTGRES_DB": database.database,
    }
    return named | ({"POSTGRES_PASSWORD": database.password} if database.password else {})


async def _answers(people: System) -> bool | None:
    done = await asyncio.to_thread(people.run, "list", "--json", code=None)
    return done.returncode == 0 or None
