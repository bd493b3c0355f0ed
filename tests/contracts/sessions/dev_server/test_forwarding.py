"""Forwarding with the person's rights and never with root's, and to nothing of the cluster."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fixtures.dev_server import Build
from support.polling import eventually
from support.ssh.dev_server_container import CONTAINER, CONTAINER_ENVIRONMENT, DEV, DevServer
from support.ssh.forwarding import (
    answers,
    echo_service,
    forwarding,
    is_refused,
    serving_echo,
    to_path,
    unix_listener,
    wait_for_line,
)

pytestmark = pytest.mark.slow

API_SERVER = CONTAINER_ENVIRONMENT["KUBERNETES_SERVICE_HOST"]


@pytest.fixture
def service() -> Iterator[int]:
    with serving_echo() as port:
        yield port


def test_a_remote_port_reserved_for_root_is_refused(container: DevServer) -> None:
    if int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) <= 999:
        pytest.skip("this machine reserves no ports for root")
    assert is_refused(container, "-R", "999:127.0.0.1:1")


@pytest.mark.parametrize("name", [API_SERVER, "sneaky"])
def test_nobody_is_led_to_the_clusters_api_server_nor_to_secrets_by_another_name(build: Build, name: str) -> None:
    builder = build(CONTAINER)
    with (builder.root / "etc" / "hosts").open("a") as hosts:
        hosts.write("169.254.169.254 sneaky\n")
    result = builder.start().ssh(options=("-W", f"{name}:80"), stdin=b"GET / HTTP/1.0\r\n\r\n")
    assert result.stdout == b""
    assert b"administratively prohibited" in result.stderr


def test_a_socket_that_the_person_may_not_use_cannot_be_used_through_a_forwarding(
    container: DevServer, tmp_path: Path
) -> None:
    theirs, ours = container.folder / "roots", tmp_path / "ours"
    seen: list[int] = []
    with echo_service(unix_listener(theirs, 0o600), seen), forwarding(container, "-L", f"{ours}:/tmp/roots") as ssh:
        eventually(ours.exists)
        assert not answers(to_path(ours))
        wait_for_line(ssh, "open failed.*permission denied")
    assert seen == []


def test_a_remote_socket_goes_with_its_connection(server: DevServer, service: int) -> None:
    path = server.folder / "remote"
    with forwarding(server, "-R", f"{server.inside(path)}:127.0.0.1:{service}"):
        eventually(lambda: answers(to_path(path)))
    eventually(lambda: not path.exists())


def test_a_remote_socket_is_not_made_where_the_person_may_not_write(container: DevServer, service: int) -> None:
    victim = container.root / "etc" / "hosts"
    for place in ("/etc/mine", "/etc/hosts", "/gpudev/bin/gpudev-devserver"):
        assert is_refused(container, "-R", f"{place}:127.0.0.1:{service}")
    assert victim.read_text().startswith("127.0.0.1")
    assert not (container.root / "etc" / "mine").exists()


def test_forwarding_leaves_the_servers_own_rights_as_they_were(container: DevServer, service: int) -> None:
    """Every thread of it: one that kept the person's rights would serve the next session wrongly."""
    path = container.folder / "remote"
    for _ in range(20):
        with forwarding(container, "-R", f"/tmp/remote:127.0.0.1:{service}"):
            eventually(lambda: answers(to_path(path)))
    threads = Path(f"/proc/{container.pid}/task").glob("*/status")
    identities = {
        line for status in threads for line in status.read_text().splitlines() if line.startswith(("Uid:", "Gid:"))
    }
    assert identities == {"Uid:\t0\t0\t0\t0", "Gid:\t0\t0\t0\t0"}
    assert container.ssh("id -u").stdout == f"{DEV}\n".encode()
