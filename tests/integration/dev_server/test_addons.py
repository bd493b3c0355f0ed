"""What the control plane changes in a dev server that runs: who may log in, and Jupyter."""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from gpudev.adapters.key_pairs import generate_key_pair
from support.paths import SUPPORT
from support.polling import eventually
from support.ssh.dev_server_container import Builder, DevServer, _as_server
from support.ssh.ssh_server import Completed

pytestmark = pytest.mark.slow
STUB = SUPPORT / "sessions" / "jupyter_stub.py"


def adjust(server: DevServer, wish: dict[str, Any] | str) -> Completed:
    """As `kubectl exec` into the container would."""
    text = wish if isinstance(wish, str) else json.dumps(wish)
    command = [*_as_server(server.mode), str(server.program), "adjust", "--port", str(server.port)]
    return subprocess.run(command, input=text.encode(), capture_output=True, timeout=20, check=False)


def adjusted(server: DevServer, keys: str, jupyter: dict[str, str] | None = None) -> Any:
    done = adjust(server, {"authorized_keys": keys, "jupyter": jupyter})
    assert done.returncode == 0, done
    return json.loads(done.stdout)["jupyter"]


def key_file(folder: Path, private: str, name: str = "other") -> Path:
    path = folder / name
    path.write_text(private)
    path.chmod(0o600)
    return path


def test_who_is_added_gets_in_and_who_is_removed_is_sent_away(server: DevServer, tmp_path: Path) -> None:
    private, public = generate_key_pair()
    other, owner = key_file(tmp_path, private), server.authorized_keys.read_text()
    assert server.ssh("true", keys=(other,)).returncode == 255
    assert adjusted(server, f"{owner}\n{public} octocat\n") is None
    assert server.ssh("echo in", keys=(other,)).stdout == b"in\n"
    sessions = {
        key: subprocess.Popen(
            server.command("echo in; exec cat", keys=(key,)), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for key in (server.key, other)
    }
    try:
        for session in sessions.values():
            assert session.stdout is not None
            assert session.stdout.readline() == b"in\n"
        adjusted(server, owner)
        eventually(lambda: sessions[other].poll() is not None)
        assert server.ssh("true", keys=(other,)).returncode == 255
        assert server.ssh("true").returncode == 0
        assert sessions[server.key].poll() is None
    finally:
        for session in sessions.values():
            session.kill()
            session.communicate()


def test_what_says_nothing_about_who_may_log_in_changes_nothing(server: DevServer) -> None:
    for nonsense in ("", "{}", "null", '{"jupyter": null}', "[]", '{"authorized_keys": 1}'):
        done = adjust(server, nonsense)
        assert done.returncode == 1, nonsense
        assert b"reading standard input" in done.stderr
    assert server.ssh("true").returncode == 0


def test_the_person_in_there_cannot_let_others_in_that_way(container: DevServer) -> None:
    said = container.ssh(
        f'echo \'{{"authorized_keys": ""}}\' | /gpudev/bin/gpudev-devserver adjust --port {container.port}'
    )
    assert said.returncode == 1
    assert container.ssh("true").returncode == 0


def install_stub(server: DevServer) -> None:
    command = "mkdir -p ~/bin && cat >~/bin/jupyter-lab && chmod +x ~/bin/jupyter-lab"
    profile = "echo 'PATH=$HOME/bin:$PATH' >~/.profile; rm -f ~/.bash_profile ~/.bash_login"
    assert server.ssh(f"{command} && {profile}", stdin=STUB.read_bytes()).returncode == 0


async def ask(server: DevServer, private: str, path: str, user: str = "jupyter") -> dict[str, Any]:
    async with await connect(server, private, user) as connection:
        reader, writer = await connection.open_connection("anywhere", 1)
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: token a-token\r\n\r\n".encode()
        )
        answer: dict[str, Any] = json.loads((await reader.read()).partition(b"\r\n\r\n")[2])
        return answer


async def connect(server: DevServer, private: str, user: str = "jupyter") -> asyncssh.SSHClientConnection:
    return await asyncssh.connect(
        "127.0.0.1",
        server.port,
        username=user,
        client_keys=[asyncssh.import_private_key(private)],
        known_hosts=str(server.known_hosts),
        config=None,
        agent_path=None,
    )


def test_jupyter_runs_as_the_person_is_reached_by_its_key_alone_and_ends(server: DevServer) -> None:
    owner = server.authorized_keys.read_text()
    install_stub(server)
    private, public = generate_key_pair()
    wish = {"token": "a-token", "public_key": public, "base_url": "/v1/jobs/x/jupyter/"}
    assert adjusted(server, owner, wish) == {"state": "starting", "reason": ""}
    eventually(lambda: adjusted(server, owner, wish)["state"] == "ready")
    told = asyncio.run(ask(server, private, "/v1/jobs/x/jupyter/api/status"))
    assert told["path"] == "/v1/jobs/x/jupyter/api/status"
    owner_of_it = server.ssh(f"stat -c %u /proc/{told['pid']}").stdout
    assert int(owner_of_it) == server.uid
    asyncio.run(opens_nothing_else(server, private))
    with pytest.raises(asyncssh.PermissionDenied):
        asyncio.run(connect(server, private, "dev"))
    with pytest.raises(asyncssh.PermissionDenied):
        asyncio.run(connect(server, server.key.read_text()))
    server.ssh(f"kill -9 {told['pid']}")
    eventually(lambda: adjusted(server, owner, wish)["state"] == "ready" and answers_anew(server, private, told["pid"]))
    again = asyncio.run(ask(server, private, "/v1/jobs/x/jupyter/api/status"))
    assert adjusted(server, owner) is None
    eventually(lambda: server.ssh(f"kill -0 {again['pid']}").returncode == 1)
    with pytest.raises(asyncssh.PermissionDenied):
        asyncio.run(connect(server, private))


async def opens_nothing_else(server: DevServer, private: str) -> None:
    async with await connect(server, private) as connection:
        with pytest.raises(asyncssh.ChannelOpenError):
            await connection.run("id")
        with pytest.raises(asyncssh.ChannelOpenError):
            await connection.open_unix_connection("/run/whatever")
        with pytest.raises(asyncssh.ChannelListenError):
            await connection.forward_remote_port("", 0, "127.0.0.1", 9)


def answers_anew(server: DevServer, private: str, before: int) -> bool:
    try:
        return bool(asyncio.run(ask(server, private, "/v1/jobs/x/jupyter/"))["pid"] != before)
    except (asyncssh.ChannelOpenError, ValueError):
        return False


def test_jupyter_can_be_wanted_from_the_start_and_one_that_is_not_there_says_what_to_do(builder: Builder) -> None:
    _, public = generate_key_pair()
    wish = {"token": "a-token", "public_key": public, "base_url": "/v1/jobs/x/jupyter/"}
    builder.write("jupyter", json.dumps(wish))
    server = builder.start()
    owner = server.authorized_keys.read_text()
    eventually(lambda: adjusted(server, owner, wish)["state"] == "failed")
    assert "gpu-dev jupyter enable --install" in adjusted(server, owner, wish)["reason"]
