"""A lab that shares one machine: its owner lets others in with `up --listen`, a colleague comes by an invitation."""

import json
import os
import re
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.ports import NEEDS_OTHER_ADDRESS, OTHER_ADDRESS, free_port
from support.system.embedded_system import System
from support.system.warm_programs import CLIENT

pytestmark = [pytest.mark.slow, NEEDS_OTHER_ADDRESS]
"""Of this machine, and not the one its owner's API listens on."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    home = Path(tmp_path_factory.mktemp("lab"))
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("GPU_DEV_", "POSTGRES_", "XDG_", "AWS_", "SSH_"))}
    system = System(home, {**kept, "HOME": str(home), "GPU_DEV_HOME": str(home / "state")})
    try:
        system.up("--port", str(free_port()), "--listen", f"{OTHER_ADDRESS}:{free_port()}")
        yield system
    finally:
        system.stop()


class Colleague:
    """Somebody with a home of their own, who knows of the machine what a link says."""

    def __init__(self, home: Path) -> None:
        self.home = home
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("GPU_DEV_", "POSTGRES_", "XDG_", "AWS_"))}
        self.env = {**kept, "HOME": str(home)}

    def run(self, *arguments: str, code: int = 0, stdin: str = "") -> str:
        done = subprocess.run(
            [*CLIENT.command, *arguments],
            env=self.env,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def colleague(tmp_path: Path) -> Colleague:
    return Colleague(tmp_path)


def invite(lab: System, name: str, *options: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(lab.server("users", "invite", name, "--json", *options).stdout)
    return made


def described(lab: System) -> dict[str, Any]:
    about: dict[str, Any] = json.loads((lab.home / "state" / "run" / "system.json").read_text())
    return about


def test_a_colleague_comes_in_by_a_link_and_gets_a_shell(lab: System, colleague: Colleague) -> None:
    invitation = invite(lab, "grace")
    assert invitation["api_url"].startswith(f"https://{OTHER_ADDRESS}:")
    assert "Logged in" in colleague.run("login", "-", stdin=invitation["link"] + "\n")
    assert "invalid or expired invitation" in colleague.run("login", invitation["link"], code=3)
    key = colleague.home / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    reserve = ("reserve", "--gpus", "1", "--hours", "0.1", "--disk", "none", "--key", f"{key}.pub", "--json")
    job = json.loads(colleague.run(*reserve))
    assert job["node_ip"] == OTHER_ADDRESS
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", job["node_port"]), timeout=5):
        raise AssertionError("it listens where nobody was told")
    known = colleague.home / "known"
    known.write_text(f"lab {job['ssh_host_key']}\n")
    options = ["-F", "none", "-o", "HostKeyAlias=lab", "-o", f"UserKnownHostsFile={known}", "-o", "BatchMode=yes"]
    shell = subprocess.run(
        [
            "ssh",
            *options,
            "-i",
            str(key),
            "-p",
            str(job["node_port"]),
            f"{job['ssh_user']}@{job['node_ip']}",
            "echo hello",
        ],
        env=colleague.env,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert shell.stdout == "hello\n"
    colleague.run("cancel", job["job_id"], "--yes")


def test_the_colleague_goes_on_without_the_link_and_knows_the_server_by_its_key(
    lab: System, colleague: Colleague
) -> None:
    invitation = invite(lab, "hedy", "--role", "operator")
    colleague.run("login", invitation["link"])
    colleague.run("list")
    pins = colleague.home / ".gpu-dev" / "trusted-servers.json"
    assert json.loads(pins.read_text()) == {invitation["api_url"]: invitation["fingerprint"]}
    pins.write_text(json.dumps({invitation["api_url"]: "x" * 43}))
    assert "does not present the key" in colleague.run("list", code=7)
    pins.unlink()
    assert "is not trusted" in colleague.run("list", code=7), "never trusted only because it was met"


def test_an_invitation_that_was_taken_back_lets_nobody_in(lab: System, colleague: Colleague) -> None:
    link = invite(lab, "ida")["link"]
    lab.server("users", "uninvite", "ida")
    assert "invalid or expired invitation" in colleague.run("login", link, code=3)
    listed = json.loads(lab.server("users", "invitations", "--json").stdout)
    assert [each["state"] for each in listed if each["username"] == "ida"] == ["revoked"]
    noted = lab.server("audit").stdout
    assert all(f"users {act}  ida" in noted for act in ("invite", "uninvite")), noted
    assert link.partition("#")[2][:20] not in noted
    assert not (colleague.home / ".gpu-dev" / "trusted-servers.json").exists()


def test_the_owner_stays_the_owner_and_nobody_else_becomes_it(lab: System, colleague: Colleague) -> None:
    assert "no live reservations" in lab.run("list").stdout, "logged in by itself, as ever"
    url = described(lab)["listen_url"]
    assert "is not trusted" in colleague.run("login", "--api-url", url, code=7)
    assert not (colleague.home / ".gpu-dev").exists()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for path in ("/v1/jobs", "/v1/users", "/v1/cluster/status"):
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(url + path, context=context, timeout=10)
        with refusal.value:
            assert refusal.value.code == 401


def test_nothing_but_tls_listens_elsewhere(lab: System) -> None:
    url = described(lab)["listen_url"]
    with pytest.raises(OSError):
        urllib.request.urlopen(url.replace("https:", "http:") + "/health", timeout=10)
    own_port = int(described(lab)["api_url"].rpartition(":")[2])
    with pytest.raises(OSError), socket.create_connection((OTHER_ADDRESS, own_port), timeout=5):
        raise AssertionError("the owner's API without TLS is for this address alone")


def test_a_second_up_finds_it_and_tells_where_others_come_in(lab: System) -> None:
    told = lab.run("up").stdout
    assert "already running" in told
    assert described(lab)["listen_url"] in told
    assert described(lab)["fingerprint"] in told
    assert "Its options are unchanged" not in told
    assert "Its options are unchanged" in lab.run("up", "--listen", "127.0.0.3").stdout


@pytest.mark.parametrize(
    ("arguments", "variables", "why"),
    [
        ([], {"GPU_DEV_API_HOST": "0.0.0.0"}, "no TLS"),
        (["--listen", "0.0.0.0"], {}, "wildcard address"),
        (["--listen", "203.0.113.7"], {}, "cannot listen"),
        (["--listen", "127.0.0.2:x"], {}, "port"),
        (["--listen", "127.0.0.2:1", "--tls-cert", "/dev/null"], {}, "listen|neither"),
        (["--tls-cert", "a", "--tls-key", "b"], {}, "but no listener"),
        (["--listen", "127.0.0.2", "--tls-cert", "/none", "--tls-key", "/none"], {}, "none"),
    ],
)
def test_what_cannot_be_safe_is_not_started(
    arguments: list[str], variables: dict[str, str], why: str, tmp_path: Path
) -> None:
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("GPU_DEV_", "POSTGRES_", "XDG_"))}
    system = System(tmp_path, {**kept, "HOME": str(tmp_path), "GPU_DEV_HOME": str(tmp_path / "state"), **variables})
    refusal = system.run("up", "--port", str(free_port()), *arguments, code=1)
    assert re.search(why, refusal.stdout), refusal.stdout
    assert not (tmp_path / "state" / "postgres").exists(), "nothing was started"
