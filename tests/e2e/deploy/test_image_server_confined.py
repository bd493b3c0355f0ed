"""The server's image as a pod has it: as nobody, with no right to more, in a root that is read-only but for /tmp.

The base image comes from a registry; this machine's own Python stands for it, with nothing else of this machine.
"""

import asyncio
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path

import pytest

from gpudev.settings import DatabaseSettings
from support.deploy.confinement import NOBODY, Confined, why_not
from support.fixtures.server_image import CONTAINERFILE
from support.kubernetes.binaries import find_binaries
from support.kubernetes.control_plane import ADMIN_TOKEN, ControlPlane
from support.kubernetes.processes import Processes
from support.polling import eventually
from support.ports import free_port

ACCOUNT = "var/run/secrets/kubernetes.io/serviceaccount"
HELP = """
import importlib
import click

def ways(command, context, path):
    yield path
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        yield from ways(command.get_command(context, name), context, [*path, name])

for name, module, whole in (("gpu-dev-server", "gpudev.main", "cli"), ("gpu-dev", "gpudev.cli.app", "root")):
    whole = getattr(importlib.import_module(module), whole)
    for path in list(ways(whole, click.Context(whole), [])):
        whole.main([*path, "--help"], prog_name=name, standalone_mode=False)
"""
AS_NOBODY = f"""
import errno, os
assert (os.getuid(), os.getgid(), os.getgroups()) == ({NOBODY}, {NOBODY}, [])
for place in ("/", "/etc", "/opt/gpu-dev/bin", os.path.dirname(click.__file__), os.path.dirname(os.__file__)):
    try:
        open(os.path.join(place, "written"), "w")
    except OSError as error:
        assert error.errno == errno.EROFS, (place, error)
    else:
        raise AssertionError(place)
open("/tmp/written", "w").close()
status = open("/proc/self/status").read()
assert "NoNewPrivs:\\t1" in status and "CapEff:\\t0000000000000000" in status
"""


@pytest.fixture(scope="module")
def confined(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Confined:
    if reason := why_not():
        pytest.skip(f"NOT TESTED: {reason}")
    # Compiled, as in the image: afterwards nobody can write it down.
    parts = "import gpudev.bootstrap.api, gpudev.bootstrap.processor, gpudev.main, gpudev.server_cli.services"
    subprocess.run([str(environment / "python"), "-c", HELP + parts], check=True, capture_output=True)
    return Confined.prepare(tmp_path_factory.mktemp("confined"), environment.parent)


@pytest.fixture(scope="module")
def plane(confined: Confined, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    if find_binaries() is None:
        pytest.skip("NO KUBERNETES TO TEST WITH: `make kube` builds it (ten minutes, once)")
    with ControlPlane(tmp_path_factory.mktemp("kube")) as plane:
        yield plane


@asynccontextmanager
async def by_network(database: DatabaseSettings) -> AsyncIterator[int]:
    """The tests' database listens on a socket that is its owner's alone; pods come over the network."""
    tasks: set[asyncio.Task[None]] = set()

    async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with closing(target), suppress(ConnectionError):
            while part := await source.read(65536):
                target.write(part)
                await target.drain()

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs = await asyncio.open_unix_connection(f"{database.host}/.s.PGSQL.{database.port}")
        for one in (carry(reader, theirs[1]), carry(theirs[0], writer)):
            tasks.add(asyncio.create_task(one))

    server = await asyncio.start_server(join, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def given_in_a_pod(database: DatabaseSettings, port: int, plane: ControlPlane) -> dict[str, str]:
    """Beside what the Containerfile says."""
    [said] = re.findall(r"^ENV (PATH=.*)$", CONTAINERFILE.read_text(), re.MULTILINE)
    return {
        **dict(one.split("=", 1) for one in said.split()),
        "POSTGRES_HOST": "127.0.0.1",
        "POSTGRES_PORT": str(port),
        "POSTGRES_USER": database.user,
        "POSTGRES_DB": database.database,
        "GPU_DEV_CLUSTER": "kubernetes",
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(plane.port),
    }


@pytest.mark.slow
async def test_as_nobody_in_a_root_that_is_read_only_every_command_answers_and_the_services_serve(
    confined: Confined, plane: ControlPlane, database: DatabaseSettings, tmp_path: Path
) -> None:
    account = confined.root / ACCOUNT
    account.mkdir(parents=True, exist_ok=True)
    (account / "token").write_text(ADMIN_TOKEN)
    shutil.copy(plane.certificate_authority, account / "ca.crt")
    ports = {"api": free_port(), "processor": free_port()}
    processes = Processes(tmp_path)

    def run(program: str, *arguments: str) -> str:
        command = confined.command(program, *arguments)
        done = subprocess.run(command, env=given, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stdout[-500:] + done.stderr
        return done.stdout

    def answers(port: int, path: str) -> str | None:
        processes.check()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return str(answer.read(), "utf-8")
        except urllib.error.HTTPError as refusal:
            refusal.close()
            return None
        except OSError:
            return None

    async with by_network(database) as line:
        given = given_in_a_pod(database, line, plane)
        told = await asyncio.to_thread(run, "python", "-c", HELP + AS_NOBODY)
        for usage in ("gpu-dev-server api", "gpu-dev-server reconcile availability", "gpu-dev reserve"):
            assert f"Usage: {usage} [OPTIONS]" in told, usage
        assert "up to date" in await asyncio.to_thread(run, "gpu-dev-server", "migrate", "--wait", "10")
        try:
            for name, port in ports.items():
                own = {"GPU_DEV_API_PORT": str(port)} if name == "api" else {"GPU_DEV_METRICS_ADDRESS": f"[::]:{port}"}
                processes.start(name, *confined.command("gpu-dev-server", name), environment={**given, **own})
            for port in ports.values():
                ready = partial(answers, port, "/health/ready")
                await asyncio.to_thread(eventually, ready, f"nobody is ready at port {port}")
            seen = await asyncio.to_thread(answers, ports["processor"], "/metrics")
            assert seen is not None and "gpudev_planner_leader" in seen
        finally:
            await asyncio.to_thread(processes.stop_all)
