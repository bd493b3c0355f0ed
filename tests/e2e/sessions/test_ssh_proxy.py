"""ssh through HTTPS on one machine, by the real clients: what people and their editors do there."""

import hashlib
import http.client
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.paths import SUPPORT
from support.polling import eventually
from support.ports import free_port
from support.system.embedded_system import System
from support.system.shell import proxied_options, proxied_ssh
from support.terminal import Terminal

pytestmark = pytest.mark.slow
Job = dict[str, Any]
MANY = 25
MOST = 8


@pytest.fixture(scope="module")
def job(system: System) -> Iterator[Job]:
    reserved = system.ask("reserve", "--gpus", "1", "--hours", "1", "--disk", "none", "--name", "My Train", "--yes")
    yield reserved
    system.run("cancel", reserved["job_id"], "--yes")


def run(system: System, command: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, env=system.environment, check=False, capture_output=True, text=True, timeout=90, **more
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_a_command_runs_with_its_input_its_output_and_its_exit_code(system: System, job: Job) -> None:
    done = subprocess.run(
        [*proxied_ssh(system, job), "cat; echo oh >&2; exit 3"],
        input="hello",
        env=system.environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "hello", "oh\n")


def test_files_go_both_ways_by_scp_and_sftp(system: System, job: Job, tmp_path: Path) -> None:
    content = bytes(range(256)) * 40_000
    (tmp_path / "up").write_bytes(content)
    options = proxied_options(system, job)
    run(system, ["scp", "-q", *options, str(tmp_path / "up"), "dev@nowhere.invalid:big"])
    (tmp_path / "orders").write_text(f"get big {tmp_path / 'down'}\nrename big bigger\n")
    run(system, ["sftp", "-q", *options, "-b", str(tmp_path / "orders"), "dev@nowhere.invalid"])
    assert (tmp_path / "down").read_bytes() == content
    assert run(system, [*proxied_ssh(system, job), "stat -c %s bigger"]).stdout == f"{len(content)}\n"


def test_a_program_that_takes_its_time_gets_every_byte_as_it_was(system: System, job: Job) -> None:
    content = os.urandom(30_000_000)
    done = subprocess.run(
        [*proxied_ssh(system, job), "sleep 0.5; sha256sum"],
        input=content,
        env=system.environment,
        check=False,
        capture_output=True,
        timeout=90,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.split()[0].decode() == hashlib.sha256(content).hexdigest()


def test_rsync_copies_a_folder_there(system: System, job: Job, tmp_path: Path) -> None:
    if shutil.which("rsync") is None:
        pytest.skip("NOT TESTED: there is no rsync on this machine (make test installs it where it can)")
    for number in range(300):
        (tmp_path / f"file-{number}").write_bytes(os.urandom(number * 10))
    shell = " ".join(f"'{part}'" for part in proxied_ssh(system, job)[:-1])
    run(system, ["rsync", "-a", "-e", shell, f"{tmp_path}/", "dev@nowhere.invalid:synced/"])
    said = run(system, [*proxied_ssh(system, job), "ls synced | wc -l; cat synced/* | md5sum"]).stdout.split()
    assert said[0] == "300"


def test_a_full_screen_program_follows_a_resize(system: System, job: Job) -> None:
    if shutil.which("less") is None:
        pytest.skip("NOT TESTED: there is no less on this machine (make test installs it as root)")
    with Terminal(proxied_ssh(system, job, "-tt"), rows=24, columns=80, env=system.environment) as terminal:
        terminal.wait_for("$", seconds=30)
        terminal.type("seq 1 500 > /tmp/numbers; less /tmp/numbers\n")
        terminal.wait_for("\n23")
        terminal.resize(rows=40, columns=100)
        terminal.wait_for("\n39")
        terminal.type("q")
        terminal.type("stty size; exit 7\n")
        terminal.wait_for("40 100")
        assert terminal.end() == 7


ANSWERING = """
import http.server, os, socketserver, sys, threading
port, path = int(sys.argv[1]), sys.argv[2]
class Answer(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.recv(10)
        self.request.sendall(b"from within")
for server in (socketserver.ThreadingTCPServer(("127.0.0.1", port), Answer),
               socketserver.ThreadingUnixStreamServer(path, Answer)):
    threading.Thread(target=server.serve_forever, daemon=True).start()
print("listening", flush=True)
sys.stdin.read()
"""


def ask(line: socket.socket) -> bytes:
    with line:
        line.settimeout(20)
        line.sendall(b"hello")
        return line.recv(100)


def through_socks(proxy_port: int, port: int) -> socket.socket:
    line = socket.create_connection(("127.0.0.1", proxy_port), timeout=20)
    line.sendall(b"\5\1\0")
    assert line.recv(2) == b"\5\0"
    line.sendall(b"\5\1\0\1" + socket.inet_aton("127.0.0.1") + port.to_bytes(2, "big"))
    if line.recv(10)[:2] != b"\5\0":
        line.close()
        raise ConnectionRefusedError
    return line


def leads_nowhere(connect: Callable[[], socket.socket]) -> bool:
    try:
        return ask(connect()) == b""
    except ConnectionError:
        return True


def test_what_vs_code_needs_works_over_one_connection(system: System, job: Job, tmp_path: Path) -> None:
    """A command with its input kept open, and forwards to a port, to a unix socket and by SOCKS, all at once."""
    inside, socks, plain, stream = (free_port() for _ in range(4))
    remote_path, local_path = f"/tmp/answering-{inside}", str(tmp_path / "local.sock")
    forwards = [
        "-D", f"127.0.0.1:{socks}", "-L", f"127.0.0.1:{plain}:127.0.0.1:{inside}",
        "-L", f"127.0.0.1:{stream}:{remote_path}", "-L", f"{local_path}:{remote_path}",
    ]  # fmt: skip
    program = f"exec python3 -c '{ANSWERING}' {inside} {remote_path}"
    working = subprocess.Popen(
        [*proxied_ssh(system, job, "-T", "-o", "ExitOnForwardFailure=yes", *forwards), program],
        env=system.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with working:
        try:
            assert working.stdout is not None
            assert working.stdout.readline() == "listening\n"
            assert ask(socket.create_connection(("127.0.0.1", plain))) == b"from within"
            assert ask(socket.create_connection(("127.0.0.1", stream))) == b"from within"
            assert ask(through_socks(socks, inside)) == b"from within"
            local = socket.socket(socket.AF_UNIX)
            local.connect(local_path)
            assert ask(local) == b"from within"
        finally:
            working.terminate()


def api_port(system: System) -> int:
    answer: dict[str, str] = json.loads((system.home / "state" / "run" / "system.json").read_text())
    return int(answer["api_url"].rpartition(":")[2])


def test_nothing_is_forwarded_to_the_control_plane_or_to_where_clouds_tell_secrets(system: System, job: Job) -> None:
    """In a network of its own none of it is there; in a shared one the SSH server leads nobody to it."""
    port = api_port(system)
    description = json.loads((system.home / "state" / "run" / "system.json").read_text())["isolation"]
    control_plane = "connect failed" if "its own network" in description else "administratively prohibited"
    plain, socks, other = free_port(), free_port(), free_port()
    own_name = run(system, [*proxied_ssh(system, job), "hostname"]).stdout.strip()
    targets = {f"{host}:{port}": control_plane for host in ("127.0.0.1", "0.0.0.0", own_name)}
    for target, reason in (targets | {"169.254.169.254:80": "administratively prohibited"}).items():
        done = subprocess.run(
            [*proxied_ssh(system, job, "-W", target)],
            input="GET /health/live HTTP/1.0\r\n\r\n",
            env=system.environment, check=False, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.stdout == ""
        assert reason in done.stderr, f"{target}: {done.stderr}"
    forwards = ["-L", f"127.0.0.1:{plain}:127.0.0.1:{port}", "-D", f"127.0.0.1:{socks}"]
    forwards += ["-L", f"127.0.0.1:{other}:127.0.0.1:{job['node_port']}"]  # its own ssh server is no secret
    working = subprocess.Popen(
        [*proxied_ssh(system, job, "-T", *forwards), "echo in; exec cat"],
        env=system.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    with working:
        try:
            assert working.stdout is not None
            assert working.stdout.readline() == "in\n"
            assert ask(socket.create_connection(("127.0.0.1", other))).startswith(b"SSH-2.0-")
            assert leads_nowhere(lambda: socket.create_connection(("127.0.0.1", plain)))
            assert leads_nowhere(lambda: through_socks(socks, port))
        finally:
            working.terminate()


def test_many_sessions_at_once(system: System, job: Job) -> None:
    """Each with an ssh client and a connection of its own. `make bench ONLY=proxy` opens 200."""
    shells = [
        subprocess.Popen(
            [*proxied_ssh(system, job, "-T", "-o", "ConnectTimeout=120"), "exec cat"],
            env=system.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )
        for _ in range(MANY)
    ]  # fmt: skip
    try:
        for word in ("first", "second"):  # when the first has come back from all, all of them are open
            for number, shell in enumerate(shells):
                assert shell.stdin is not None
                shell.stdin.write(f"{word} {number}\n")
            for number, shell in enumerate(shells):
                assert shell.stdout is not None
                assert shell.stdout.readline() == f"{word} {number}\n"
        for shell in shells:
            assert shell.stdin is not None
            shell.stdin.close()
        assert [shell.wait(60) for shell in shells] == [0] * MANY
    finally:
        for shell in shells:
            shell.kill()
            shell.wait()
            assert shell.stdout is not None
            shell.stdout.close()


def call(system: System, method: str, path: str, key: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", api_port(system), timeout=20)
    try:
        connection.request(method, path, headers={"Authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        assert answer.status < 300, answer.status
        body = answer.read()
        return json.loads(body) if body else None
    finally:
        connection.close()


def test_a_session_ends_with_the_key_that_opened_it(system: System, job: Job) -> None:
    """And it, like every other, is in the audit log with who, from where, how long and why."""
    (own,) = json.loads((system.home / ".gpu-dev" / "credentials").read_text()).values()
    other = json.loads(system.server("users", "key", job["user"], "--json").stdout)["api_key"]
    session = subprocess.Popen(
        [*proxied_ssh(system, job), "echo in; exec cat"],
        env={**system.environment, "GPU_DEV_API_KEY": other},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with session:
        assert session.stdout is not None
        assert session.stderr is not None
        assert session.stdout.readline() == "in\n"
        call(system, "DELETE", "/v1/keys/current", other)
        revoked = time.monotonic()
        assert session.wait(timeout=60) == 255
        assert time.monotonic() - revoked < 20  # a second, on a machine that has nothing else to do
        assert "was revoked" in session.stderr.read()

    def ended() -> dict[str, Any] | None:
        found = call(system, "GET", "/v1/audit?outcome=access_ended", own["api_key"])
        return next(iter(found["entries"]), None)

    entry = eventually(ended, "the audit log does not have it")
    assert (entry["action"], entry["username"], entry["address"]) == ("ssh session ended", job["user"], "127.0.0.1")
    assert entry["target"].startswith(job["reservation_id"])


def test_the_commands_go_through_it_when_told_to(system: System, job: Job, tmp_path: Path) -> None:
    short = job["job_id"][:8]
    assert system.run("connect", short, "--proxy", "--", "echo", "two words").stdout == "two words\n"
    assert system.run("exec", "--proxy", "--", "exit 5", code=5).stdout == ""
    assert system.run("exec", "--proxy", "--", "kill -KILL $$", code=137).stdout == ""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("content")
    system.run("cp", "--proxy", str(tmp_path / "data"), ":carried")
    system.run("cp", "--proxy", f"{short}:carried/file", str(tmp_path / "back"))
    assert (tmp_path / "back").read_text() == "content"
    said = system.run("logs", short).stdout
    assert [kind for kind in ("submitted", "preparing", "active") if f"  {kind}" in said] == [
        "submitted",
        "preparing",
        "active",
    ]


def test_ssh_knows_it_by_name(system: System, job: Job) -> None:
    """As `reserve` left it; once straight, and once as it would be written for another machine."""
    config = system.home / ".ssh" / "config"
    assert config.read_text().count("Include") == 1
    assert run(system, ["ssh", "-F", str(config), "gpu-dev-my-train", "echo straight"]).stdout == "straight\n"
    own = (system.home / ".gpu-dev" / "ssh_config").read_text()
    assert f"Port {job['node_port']}" in own
    command = f"{shlex.quote(sys.executable)} -m gpudev.cli proxy-command --auto {job['job_id']}"
    options = ["-o", f"ProxyCommand={command}", "-o", "HostName=nowhere.invalid"]
    assert run(system, ["ssh", "-F", str(config), *options, "gpu-dev-my-train", "echo auto"]).stdout == "auto\n"


def test_a_session_ends_with_its_reservation_and_says_why(system: System) -> None:
    brief = system.ask("reserve", "--gpus", "1", "--hours", "1", "--disk", "none", "--yes")
    session = subprocess.Popen(
        [*proxied_ssh(system, brief), "echo in; exec cat"],
        env=system.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with session:
        assert session.stdout is not None
        assert session.stderr is not None
        assert session.stdout.readline() == "in\n"
        system.run("cancel", brief["job_id"], "--yes")
        assert session.wait(timeout=30) == 255
        assert f"reservation {brief['job_id'][:8]} is cancelled" in session.stderr.read()
    refused = system.run("proxy-command", brief["job_id"], code=5)
    assert "is cancelled" in refused.stderr


def test_another_users_dev_server_is_not_there(system: System, job: Job) -> None:
    key = system.add_user("mallory")
    refused = system.run("proxy-command", job["job_id"], code=4, GPU_DEV_API_KEY=key)
    assert "you have no reservation" in refused.stderr


def test_a_proxy_of_its_own_serves_what_the_api_gave_tokens_for(system: System, job: Job) -> None:
    port = free_port()
    proxy = subprocess.Popen(
        [sys.executable, "-m", "gpudev.main", "proxy", "--port", str(port)],
        env={**system.environment, "GPU_DEV_MAX_CONNECTIONS": str(MOST)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        eventually(lambda: _answers(port, "/health/ready"), "the proxy did not become ready")
        # One address for both: what answers here are the proxy's WebSockets, what gives tokens is the API.
        elsewhere = str(SUPPORT / "sessions" / "proxy_command_to.py")
        command = shlex.join([sys.executable, elsewhere, f"http://127.0.0.1:{port}", job["job_id"]])
        options = [*system.ssh_options(job), "-o", f"ProxyCommand={command}"]
        said = run(system, ["ssh", *options, "dev@nowhere.invalid", "echo apart"]).stdout
        assert said == "apart\n"
        held = [socket.create_connection(("127.0.0.1", port)) for _ in range(MOST)]
        assert not _answers(port, "/health/live"), "there are as many connections as it takes"
        for line in held:
            line.close()
        eventually(lambda: _answers(port, "/health/live"), "it does not answer any more")
    finally:
        proxy.terminate()
        proxy.wait(20)


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
