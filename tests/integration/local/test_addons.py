"""The inside of dev servers on this machine: who is let in while they run, and Jupyter."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from gpudev.adapters.key_pairs import ensure_host_key, generate_key_pair
from gpudev.domain.errors import Unavailable
from gpudev.domain.sessions.addons import JupyterSpec, JupyterState, JupyterStatus, jupyter_path
from gpudev.ports.clock import SystemClock
from gpudev.ports.cluster import ServerSpec, ServerState
from support.local.local_world import MODES, LocalWorld
from support.paths import SUPPORT
from support.polling import eventually_async

pytestmark = pytest.mark.slow
STUB = SUPPORT / "sessions" / "jupyter_stub.py"


@pytest.fixture
async def one(request: pytest.FixtureRequest) -> AsyncIterator[LocalWorld]:
    """In the best way of keeping apart that can be tried."""
    async with LocalWorld(SystemClock(), MODES[0]) as opened:
        yield opened


async def test_who_is_added_gets_in_and_who_is_removed_is_out_also_of_open_sessions(world: LocalWorld) -> None:
    spec = world.spec()
    seen = await world.ready(spec)
    owner = world.key
    colleague = world.folder / "colleague"
    theirs = ensure_host_key(colleague)

    async def gets_in(key: Path) -> bool:
        world.key = key
        return (await world.ssh(seen, "true")).returncode == 0

    assert not await gets_in(colleague)
    await world.cluster.apply_addons(spec.reservation_id, (world.public_key, theirs), None)
    assert await gets_in(colleague)
    sessions = {}
    for key in (owner, colleague):
        world.key = key
        sessions[key] = world.open_session(seen, "echo in; exec cat")
        stdout = sessions[key].stdout
        assert stdout is not None
        assert await asyncio.to_thread(stdout.readline) == b"in\n"
    try:
        await world.cluster.apply_addons(spec.reservation_id, (world.public_key,), None)
        assert not await gets_in(colleague)
        await eventually_async(lambda: sessions[colleague].poll() is not None)
        assert await gets_in(owner)
        assert sessions[owner].poll() is None
    finally:
        world.key = owner
        for session in sessions.values():
            session.kill()
            session.communicate()


async def test_who_was_added_is_still_let_in_after_a_restart_of_the_control_plane(one: LocalWorld) -> None:
    spec = one.spec()
    await one.ready(spec)
    theirs = ensure_host_key(one.folder / "colleague")
    await one.cluster.apply_addons(spec.reservation_id, (one.public_key, theirs), None)
    async with one.nobody_watching():
        pass
    await one.cluster.apply_addons(spec.reservation_id, (one.public_key, theirs), None)
    seen = await one.seen(spec.reservation_id)
    assert seen is not None
    one.key = one.folder / "colleague"
    assert await one.out(seen, "echo in") == "in"


async def test_one_that_does_not_run_is_not_adjusted(one: LocalWorld) -> None:
    with pytest.raises(Unavailable):
        await one.cluster.apply_addons(one.spec().reservation_id, (), None)


# --- Jupyter ----------------------------------------------------------------------------------------------------------


def wish(spec: ServerSpec, public: str) -> JupyterSpec:
    return JupyterSpec("a-random-token", public, jupyter_path(spec.reservation_id))


async def until(world: LocalWorld, spec: ServerSpec, wanted: JupyterSpec, *states: JupyterState) -> JupyterStatus:
    async def reached() -> JupyterStatus | None:
        status = await world.cluster.apply_addons(spec.reservation_id, (world.public_key,), wanted)
        assert status is not None
        return status if status.state in states else None

    return await eventually_async(reached, every=0.1)


async def install_stub(world: LocalWorld, seen: ServerState) -> None:
    """On the PATH of a login shell, as people do it."""
    command = (
        "mkdir -p ~/bin && cat >~/bin/jupyter-lab && chmod +x ~/bin/jupyter-lab && echo 'PATH=~/bin:$PATH' >~/.profile"
    )
    await world.out(seen, f"{command}; rm -f ~/.bash_profile ~/.bash_login", STUB.read_bytes())


async def connect(seen: ServerState, private: str, user: str = "jupyter") -> asyncssh.SSHClientConnection:
    assert seen.connection is not None
    host, port = seen.connection.host, seen.connection.port
    known = f"[{host}]:{port} {seen.connection.host_key}"
    return await asyncssh.connect(
        host,
        port,
        username=user,
        client_keys=[asyncssh.import_private_key(private)],
        known_hosts=asyncssh.import_known_hosts(known),
        config=None,
        agent_path=None,
    )


async def ask(connection: asyncssh.SSHClientConnection, path: str) -> dict[str, object]:
    reader, writer = await connection.open_connection("jupyter", 0)
    writer.write(
        f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: token a-random-token\r\n\r\n".encode()
    )
    answer = await reader.read()
    writer.close()
    told: dict[str, object] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return told


async def test_jupyter_starts_in_a_running_dev_server_is_reached_by_its_key_and_stops_again(world: LocalWorld) -> None:
    spec = world.spec()
    server = await world.ready(spec)
    await install_stub(world, server)
    private, public = generate_key_pair()
    wanted = wish(spec, public)
    await until(world, spec, wanted, JupyterState.READY)
    async with await connect(server, private) as connection:
        told = await ask(connection, f"{wanted.base_url}api/status")
        assert told["path"] == f"{wanted.base_url}api/status"
        running = told["pid"]
        # The control plane comes back and wants the same: nothing is started anew.
        async with world.nobody_watching():
            pass
        await until(world, spec, wanted, JupyterState.READY)
        assert (await ask(connection, wanted.base_url))["pid"] == running
        assert await world.cluster.apply_addons(spec.reservation_id, (world.public_key,), None) is None
        command = "pgrep -f '[j]upyter-lab' >/dev/null && echo runs || echo gone"

        async def is_gone() -> bool:
            return await world.out(server, command) == "gone"

        await eventually_async(is_gone, every=0.1)
        with pytest.raises(asyncssh.ChannelOpenError):
            await ask(connection, wanted.base_url)
    with pytest.raises(asyncssh.PermissionDenied):
        await connect(server, private)


async def test_jupyters_key_opens_nothing_else(one: LocalWorld, tmp_path: Path) -> None:
    spec = one.spec()
    server = await one.ready(spec)
    await install_stub(one, server)
    private, public = generate_key_pair()
    wanted = wish(spec, public)
    await until(one, spec, wanted, JupyterState.READY)
    with pytest.raises(asyncssh.PermissionDenied):
        await connect(server, private, "dev")
    with pytest.raises(asyncssh.PermissionDenied):
        await connect(server, one.key.read_text())
    assert server.connection is not None
    async with await connect(server, private) as connection:
        with pytest.raises(asyncssh.ChannelOpenError):
            await connection.run("id")
        with pytest.raises(asyncssh.ChannelOpenError):
            await connection.open_unix_connection("/run/whatever")
        with pytest.raises(asyncssh.ChannelListenError):
            await connection.forward_remote_port("", 0, "127.0.0.1", 9)
        # Wherever it says that it wants to go, it comes to Jupyter.
        reader, writer = await connection.open_connection("127.0.0.1", server.connection.port)
        writer.write(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 403")


async def test_without_jupyter_it_says_so_and_what_to_do(one: LocalWorld) -> None:
    spec = one.spec()
    await one.ready(spec)
    seen = await until(one, spec, wish(spec, generate_key_pair()[1]), JupyterState.FAILED)
    assert seen.reason is not None
    assert "gpu-dev jupyter enable --install" in seen.reason


async def test_one_that_cannot_start_says_why_and_one_that_dies_is_started_again(one: LocalWorld) -> None:
    spec = replace(one.spec(), environment={"STUB_REFUSES": "yes"})
    server = await one.ready(spec)
    await install_stub(one, server)
    wanted = wish(spec, generate_key_pair()[1])
    seen = await until(one, spec, wanted, JupyterState.FAILED)
    assert seen.reason is not None
    assert "this stub does not want to" in seen.reason
    other = one.spec()
    server = await one.ready(other)
    await install_stub(one, server)
    private, public = generate_key_pair()
    again = wish(other, public)
    await until(one, other, again, JupyterState.READY)
    async with await connect(server, private) as connection:
        first = (await ask(connection, again.base_url))["pid"]
        await one.out(server, "pkill -9 -f '[j]upyter-lab'")

        async def is_another() -> bool:
            with contextlib.suppress(asyncssh.ChannelOpenError, ValueError):
                return (await ask(connection, again.base_url))["pid"] != first
            return False

        await eventually_async(is_another, every=0.1)


async def test_it_runs_again_when_the_dev_server_is_made_anew(one: LocalWorld) -> None:
    spec = one.spec()
    server = await one.ready(spec)
    await install_stub(one, server)
    private, public = generate_key_pair()
    wanted = wish(spec, public)
    await until(one, spec, wanted, JupyterState.READY)
    async with one.nobody_watching():
        await one.kill(spec.reservation_id)
    server = await one.ready(replace(spec, jupyter=wanted))
    await until(one, spec, wanted, JupyterState.READY)
    async with await connect(server, private) as connection:
        assert (await ask(connection, wanted.base_url))["method"] == "GET"
