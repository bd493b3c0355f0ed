"""Installed on a real control plane, the chart's services do their whole work with exactly the rights it grants them.

They run as processes with what their pods would have: the installed settings, commands and service accounts.
"""

import asyncio
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from gpudev.adapters.postgres.database.pool import connect
from gpudev.embedded.postgres import EmbeddedPostgres
from support.deploy.chart_services import CONTROLPLANE, Installed, asked_for, end_of_log, was_refused
from support.deploy.helm_chart import CHART, Helm
from support.kubernetes.api import KubeApi, Object
from support.kubernetes.binaries import ensure_binaries
from support.kubernetes.control_plane import ControlPlane
from support.kubernetes.fake_nodes import FakeNodes
from support.polling import eventually_async

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]
_PATIENCE_SECONDS = 240.0
"""Twenty processes on a busy machine."""
WORKLOADS = "gpu-dev"
TIMING = {
    "GPU_DEV_ORPHAN_GRACE": "3",
    "GPU_DEV_SWEEP_EVERY": "1",
    "GPU_DEV_RETRY_BACKOFF": "0.5",
    "GPU_DEV_LEASE_TTL": "4",
    "GPU_DEV_TERMINATION_GRACE": "1",
}
"""What takes minutes takes seconds, but nobody is hurried: nothing here is about being late."""
_GANG = ("reserve", "--gpus", "16", "--type", "h100", "--hours", "1", "--yes")
_SLOT = ("reserve", "--gpus", "0", "--type", "cpu-x86", "--hours", "1", "--yes")
VALUES: Object = {"devServers": {"sharedStorageClass": "nfs"}, "helmTest": {"gpuType": "cpu-x86"}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def installed(
    helm: Helm, plane: ControlPlane, postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Installed]:
    """An empty database, as a new installation finds it."""
    await asyncio.to_thread(
        helm.run, "install", "gpu-dev", str(CHART), *helm.value_arguments(values=VALUES), kubeconfig=plane.kubeconfig
    )
    server = postgres.database_settings()
    admin = await connect(replace(server, database="postgres"))
    empty = replace(server, database=f"chart_{uuid.uuid4().hex[:8]}")
    await admin.execute(f'CREATE DATABASE "{empty.database}"')
    api = await KubeApi.connect(plane.kubeconfig)
    made = Installed(plane, api, empty, tmp_path_factory.mktemp("services"), TIMING)
    try:
        await made.prepare()
        yield made
    finally:
        await asyncio.to_thread(made.stop_all)
        await api.close()
        await admin.execute(f'DROP DATABASE "{empty.database}" WITH (FORCE)')
        await admin.close()
        await asyncio.to_thread(helm.run, "uninstall", "gpu-dev", kubeconfig=plane.kubeconfig)


async def test_a_whole_life_with_the_granted_rights_and_nothing_refused(installed: Installed) -> None:
    nodes = FakeNodes(installed.api, installed.plane.node_mark, kwok_port=installed.plane.kwok_port)
    since = end_of_log(installed.plane)
    await _offer_shared_storage(installed)
    try:
        await _migrate(installed)
        await installed.start("api-service")
        await installed.start("reservation-processor")
        await nodes.add_many("n", 2, gpus=8, gpu_type="h100")
        await nodes.add("c", gpus=0, gpu_type="cpu-x86", cpus=32, memory="64Gi")
        await _answers(installed)
        await _reserve_cancel_and_expire(installed)
        await _tell_how_they_are(installed)
        await _helm_test(installed)
        await _die_with_last_words(installed)
        await _start_after_an_interruption(installed)
        await _clear_a_machine(installed)
        await _without_a_processor(installed)
    finally:
        await nodes.remove_all()
        await asyncio.to_thread(installed.stop_all)
    assert not asked_for(installed.plane, since, was_refused)
    used = set(asked_for(installed.plane, since))
    granted = await _granted(installed.api)
    assert used <= granted
    never = {(who, resource, verb) for who, _, resource, verb in granted - used}
    assert never == NEVER_WRITTEN_DOWN, "\n".join(map(str, sorted(never ^ NEVER_WRITTEN_DOWN)))
    assert not any(who == "api-service" for who, *_ in used)


NEVER_WRITTEN_DOWN = {
    # Newer API servers want this beside "get" before they let anybody exec, and do not write it down.
    ("reservation-processor", "pods/exec", "create"),
    ("reservation-expiry", "pods/exec", "create"),
}
"""All else that is granted is used, or it is too much. What is granted only with a cloud: tests/e2e/kubernetes."""


async def test_a_processor_without_one_of_its_rules_starts_nobody(installed: Installed) -> None:
    taken = "secrets"
    since = end_of_log(installed.plane)
    role = await installed.api.get("roles", "reservation-processor", WORKLOADS)
    fewer = [
        {**rule, "resources": kept} for rule in role["rules"] if (kept := [r for r in rule["resources"] if r != taken])
    ]
    await installed.api.patch("roles", "reservation-processor", {"rules": fewer}, WORKLOADS)
    nodes = FakeNodes(installed.api, installed.plane.node_mark, kwok_port=installed.plane.kwok_port)
    try:
        await _migrate(installed)
        await installed.start("api-service")
        await installed.start("reservation-processor")
        await nodes.add("lonely", gpus=8, gpu_type="h100")

        def is_it(event: Object) -> bool:
            return was_refused(event) and event["objectRef"]["resource"] == taken

        async def look() -> bool | None:
            return bool(asked_for(installed.plane, since, is_it)) or None

        await _submit_when_it_answers(installed)
        await eventually_async(look, "the rule that was taken away was not missed", within=_PATIENCE_SECONDS)
        pods = await installed.api.list("pods", WORKLOADS, selector="gpu-dev/reservation-id")
        assert pods == []
    finally:
        await asyncio.to_thread(installed.stop_all)
        await nodes.remove_all()
        await installed.api.patch("roles", "reservation-processor", {"rules": role["rules"]}, WORKLOADS)


async def _offer_shared_storage(installed: Installed) -> None:
    """Where no provisioner runs, one volume for each of two users' claims."""
    volume = {
        "metadata": {"generateName": "shared-"},
        "spec": {
            "capacity": {"storage": "100Gi"},
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "nfs",
            "nfs": {"server": "files.example.com", "path": "/"},
        },
    }
    for _ in range(2):
        await installed.api.create("persistentvolumes", volume)


async def _migrate(installed: Installed) -> None:
    [job] = await installed.api.list("jobs", CONTROLPLANE, selector="app=migrate")
    await installed.run("jobs", job["metadata"]["name"])
    assert "up to date" in await installed.run("jobs", job["metadata"]["name"])


async def _submit_when_it_answers(installed: Installed) -> None:
    await _log_in(installed)
    ask = ("reserve", "--gpus", "1", "--type", "h100", "--hours", "1", "--yes", "--no-wait", "--json")

    async def look() -> bool | None:
        return (await asyncio.to_thread(installed.people.run, *ask, code=None)).returncode == 0 or None

    await eventually_async(
        look, f"the API takes no reservation\n{installed.log('api-service')}", within=_PATIENCE_SECONDS
    )


async def _log_in(installed: Installed) -> None:
    name = f"user-{uuid.uuid4().hex[:8]}"
    installed.people.environment["GPU_DEV_API_KEY"] = await asyncio.to_thread(installed.people.add_user, name)


async def _answers(installed: Installed) -> None:
    await _log_in(installed)

    async def look() -> bool | None:
        installed.check()
        done = await asyncio.to_thread(installed.people.run, "avail", "--json", code=None)
        if done.returncode:
            return None
        types = {one["gpu_type"]: one for one in installed.people.parse(done)["gpu_types"]}
        return types["h100"]["total_cluster_gpus"] == 16 or None

    await eventually_async(look, "the services do not see the nodes", within=_PATIENCE_SECONDS)


async def _reserve_cancel_and_expire(installed: Installed) -> None:
    """A gang (with its own names, policy and shared storage) and one that is warned and runs out."""
    gang = await _ask(installed, *_GANG)
    assert gang["status"] == "active"
    updated = await installed.run("cronjobs", "availability-updater", "--json")
    assert updated["availability"]["errors"] == []
    assert not (await installed.run("cronjobs", "reservation-expiry", "--json"))["acted"], "a processor is at work"
    await _ask(installed, "cancel", gang["job_id"], "--yes")
    brief = await _ask(
        installed, "reserve", "--gpus", "0", "--type", "cpu-x86", "--hours", "0.001", "--yes", "--no-wait"
    )
    await _until(installed, brief, "expired")
    await _nothing_left(installed)


async def _tell_how_they_are(installed: Installed) -> None:
    """To kubelets and to Prometheus, with no more rights than they have."""
    async with httpx2.AsyncClient(timeout=30) as client:
        for name, address in installed.metrics.items():
            for path in ("/health/live", "/health/ready"):
                answer = await client.get(f"http://{address}{path}")
                assert answer.status_code == 200, f"{name} {path}: {answer.text}"
        seen = (await client.get(f"http://{installed.metrics['reservation-processor']}/metrics")).text
        assert 'gpudev_gpus_capacity{gpu_type="h100"} 16.0' in seen
        assert 'gpudev_cluster_watch_staleness_seconds{kind="pods"}' in seen
        assert "gpudev_planner_lease_held 1.0" in seen and "gpudev_planner_leader 1.0" in seen
        seen = (await client.get(f"http://{installed.metrics['api-service']}/metrics")).text
        assert 'gpudev_http_requests_total{method="POST",route="/v1/jobs/submit",status="202"}' in seen


async def _helm_test(installed: Installed) -> None:
    """What `helm test` runs, with its pod's own environment."""
    chart = Helm(ensure_binaries() / "helm", installed.folder).render(values=VALUES)
    [container] = chart.get("Pod", "helm-test-reserve")["spec"]["containers"]
    said = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    script = installed.folder / "reserve.py"
    script.write_text(chart.get("ConfigMap", "helm-test-script")["data"]["reserve.py"])
    for name, module in (("gpu-dev", "gpudev.cli"), ("gpu-dev-server", "gpudev.main")):
        program = installed.folder / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
        program.chmod(0o755)
    environment = {**said, **installed.people.environment, "PATH": f"{installed.folder}:{os.environ['PATH']}"}
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " is active on c: ssh " in done.stdout
    assert environment["GPU_TYPE"] == "cpu-x86"


async def _die_with_last_words(installed: Installed) -> None:
    installed.plane.set_pod_log("its last words\n")
    job = await _ask(installed, "reserve", "--gpus", "1", "--type", "h100", "--hours", "1", "--yes")
    await installed.api.play(job["pod_name"], WORKLOADS, "crash")
    failed = await _until(installed, job, "failed")
    assert "its last words" in failed["failure_reason"]
    await _nothing_left(installed)


async def _start_after_an_interruption(installed: Installed) -> None:
    """Whoever takes over finds what the one before has made, looks at each of it and brings it up to date."""
    gang = await _ask(installed, *_GANG, "--image", "play.test/never-ready", "--no-wait")
    wanted = {"pods": 2, "services": 2, "secrets": 1, "networkpolicies": 1}

    async def made() -> bool | None:
        found = {kind: len(await _things(installed, kind, gang)) for kind in wanted}
        return found == wanted or None

    await eventually_async(made, "not all of it was made", within=_PATIENCE_SECONDS)
    await asyncio.to_thread(installed.stop, "reservation-processor")
    since = end_of_log(installed.plane)
    await installed.start("reservation-processor")

    async def found_again() -> bool | None:
        asked = {(resource, verb) for _, _, resource, verb in asked_for(installed.plane, since)}
        return asked >= {("services", "patch"), ("networkpolicies", "patch"), ("pods", "get")} or None

    await eventually_async(found_again, "nobody looked at what was there", within=_PATIENCE_SECONDS)
    await _ask(installed, "cancel", gang["job_id"], "--yes")
    await _until(installed, gang, "cancelled")
    await _nothing_left(installed)


async def _clear_a_machine(installed: Installed) -> None:
    """One that no longer answers: operators take away what it holds."""
    job = await _ask(installed, *_SLOT)
    await installed.api.play(job["pod_name"], WORKLOADS, "stuck")
    told = await installed.operate("nodes", "clear", "c", "--warning", "0", "--force", "--reason", "dead", "--yes")
    assert f"pod {job['pod_name']} is deleted" in told
    await _nothing_left(installed)
    await installed.operate("nodes", "uncordon", "c")


async def _without_a_processor(installed: Installed) -> None:
    """The CronJob ends what is over, and warns who soon is."""
    gang = await _ask(installed, *_GANG)
    warned = await _ask(installed, *_SLOT)
    await asyncio.to_thread(installed.stop, "reservation-processor")
    await _set_end(installed, gang, timedelta())
    await _set_end(installed, warned, timedelta(minutes=4))

    async def look() -> bool | None:
        return (await installed.run("cronjobs", "reservation-expiry", "--json"))["acted"] or None

    await eventually_async(look, "the stopped processor's lease does not end", within=_PATIENCE_SECONDS)
    assert (await _ask(installed, "status", gang["job_id"]))["status"] == "expired"
    assert await _warnings(installed, warned) == 1
    await _ask(installed, "cancel", warned["job_id"], "--yes")
    await look()
    await _nothing_left(installed)


async def _set_end(installed: Installed, job: dict[str, Any], later: timedelta) -> None:
    connection = await connect(installed.database)
    await connection.execute(
        "UPDATE reservations SET expires_at = now() + $2 WHERE reservation_id = $1", uuid.UUID(job["job_id"]), later
    )
    await connection.close()


async def _warnings(installed: Installed, job: dict[str, Any]) -> int:
    connection = await connect(installed.database)
    found: int = await connection.fetchval(
        "SELECT count(*) FROM reservation_events WHERE reservation_id = $1 AND kind = 'warning'",
        uuid.UUID(job["job_id"]),
    )
    await connection.close()
    return found


async def _things(installed: Installed, kind: str, job: dict[str, Any]) -> list[Object]:
    return await installed.api.list(kind, WORKLOADS, selector=f"gpu-dev/reservation-id={job['job_id']}")


async def _ask(installed: Installed, *arguments: str) -> dict[str, Any]:
    return await asyncio.to_thread(installed.people.ask, *arguments)


async def _until(installed: Installed, job: dict[str, Any], status: str) -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        seen = await _ask(installed, "status", job["job_id"])
        return seen if seen["status"] == status and seen["released_at"] else None

    return await eventually_async(
        look,
        f"{job['job_id']} did not become {status}\n{installed.log('reservation-processor')}",
        within=_PATIENCE_SECONDS,
    )


async def _nothing_left(installed: Installed) -> None:
    async def look() -> bool | None:
        for kind in ("pods", "services", "secrets"):
            if await installed.api.list(kind, WORKLOADS, selector="gpu-dev/reservation-id"):
                return None
        return True

    await eventually_async(look, "something of a reservation is left", within=_PATIENCE_SECONDS)


async def _granted(api: KubeApi) -> set[tuple[str, str, str, str]]:
    """By what is in the cluster, not by what the chart meant."""
    found = set()
    for kind, place in (("clusterrole", None), ("role", WORKLOADS)):
        for binding in await api.list(f"{kind}bindings", place, selector="app.kubernetes.io/instance=gpu-dev"):
            role = await api.get(f"{kind}s", binding["roleRef"]["name"], place)
            found |= {
                (binding["subjects"][0]["name"], group, resource, verb)
                for rule in role["rules"]
                for group in rule["apiGroups"]
                for resource in rule["resources"]
                for verb in rule["verbs"]
            }
    return found
