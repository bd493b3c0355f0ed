"""Dev servers with networks of their own: what they reach, what they do not, and what is left of it."""

import asyncio
import os
import socket

import pytest

from gpudev.adapters.local.cluster import LocalCluster
from gpudev.adapters.local.network import links, probe
from gpudev.adapters.local.network.plan import NetworkSetting
from gpudev.adapters.local.servers.server_networks import read_network_description
from gpudev.ports.cluster import ServerPhase
from support.fixtures.own_networks import OwnNetworkWorld
from support.local.local_world import BOB
from support.local.network_tools import (
    NEEDS_OWN_NETWORKS,
    address_of_host,
    fetch,
    listening,
    network_of,
    serve,
    socks_answer,
    through_forward,
    through_stdio,
)
from support.polling import eventually_async
from support.ports import free_port

pytestmark = [pytest.mark.slow, *NEEDS_OWN_NETWORKS]


async def test_two_people_listen_on_the_same_port_and_each_reaches_their_own(own: OwnNetworkWorld) -> None:
    alice, bob = await own.ready(own.spec()), await own.ready(own.spec(user_id=BOB, username="bob"))
    for seen, name in ((alice, "alice"), (bob, "bob")):
        for port in (8888, 6006):
            await own.out(seen, serve(port, f"{name} {port}"))
    for seen, name in ((alice, "alice"), (bob, "bob")):
        for port in (8888, 6006):
            assert await through_stdio(own, seen, f"127.0.0.1:{port}") == f"{name} {port}"
            assert await through_forward(own, seen, f"localhost:{port}") == f"{name} {port}"
    assert "its own network" in own.cluster.isolation


async def test_nothing_of_the_machine_can_be_reached_from_inside(own: OwnNetworkWorld) -> None:
    spec = own.spec()
    seen, other = await own.ready(spec), await own.ready(own.spec(user_id=BOB, username="bob"))
    await own.out(other, serve(8888, "bob", address="0.0.0.0"))
    addresses = await own.out(other, "cat /proc/net/fib_trie | grep -B1 'host LOCAL' | grep -oE '[0-9.]{7,}'")
    assert other.connection is not None
    targets = [(address, 8888) for address in set(addresses.split()) if not address.startswith("127.")]
    assert targets
    with listening("0.0.0.0") as control_plane:
        hosts = ("127.0.0.1", "localhost", address_of_host())
        targets += [(host, control_plane[1]) for host in hosts] + [(host, other.connection.port) for host in hosts]
        for host, port in targets:
            probe_command = f"timeout 5 bash -c 'exec 3<>/dev/tcp/{host}/{port}'"
            assert (await own.ssh(seen, probe_command)).returncode != 0, (host, port)
            assert await through_stdio(own, seen, f"{host}:{port}") == "", (host, port)
    assert set((await own.out(seen, "ls /sys/class/net")).split()) == {"lo", "eth0"}
    assert (await own.ssh(seen, "touch /sys/x /sys/fs/cgroup/x")).returncode != 0


async def test_a_user_cannot_get_into_the_hosts_network(own: OwnNetworkWorld) -> None:
    seen = await own.ready(own.spec())
    for command in (
        "ip link set eth0 down",
        "ip address add 127.0.0.9/8 dev eth0",
        "ip route add 203.0.113.0/24 dev eth0",
        "echo 0 > /proc/sys/net/ipv6/conf/eth0/disable_ipv6",
        "nsenter --net=/proc/1/ns/net true",
        "unshare -Ur ip link set eth0 down",
        "unshare -Ur sh -c 'echo 0 > /proc/sys/net/ipv6/conf/eth0/disable_ipv6'",
    ):
        assert (await own.ssh(seen, command)).returncode != 0, command
    assert (await own.out(seen, "readlink /proc/self/ns/net")) != network_of(os.getpid())


async def test_a_user_who_takes_every_port_keeps_nobody_from_starting(own: OwnNetworkWorld) -> None:
    alice = await own.ready(own.spec())
    taken = await own.out(
        alice,
        "python3 -c '"
        "import resource, socket, subprocess, sys\n"
        "limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))\n"
        "held = []\n"
        "for port in range(32768, 32768 + min(limit, 20000) - 100):\n"
        "    one = socket.socket(); held.append(one)\n"
        '    try: one.bind(("127.0.0.1", port)); one.listen(1)\n'
        "    except OSError: pass\n"
        "print(len(held)); sys.stdout.flush()\n"
        "import os\n"
        "if os.fork() == 0:\n"
        "    os.setsid(); [os.close(n) for n in (0, 1, 2)]\n"
        "    import time; time.sleep(300)\n"
        "'",
    )
    assert int(taken) > 1000
    for _ in range(2):
        bob = await own.ready(own.spec(nodes=2, user_id=BOB, username="bob"))
        assert await own.out(bob, "echo in") == "in"


async def test_ports_are_forwarded_in_every_direction(own: OwnNetworkWorld) -> None:
    seen = await own.ready(own.spec())
    await own.out(seen, serve(8888, "inside"))
    with listening("127.0.0.1", answer=b"mine") as (_, port):
        remote = own.open_session(seen, "cat", "-R", f"9999:127.0.0.1:{port}")
        try:
            await eventually_async(lambda: "mine" in own.ssh_now(seen, fetch("127.0.0.1", 9999)).stdout, within=60)
        finally:
            remote.kill()
            remote.communicate()
    free = free_port()
    proxy = own.open_session(seen, "cat", "-D", f"127.0.0.1:{free}")
    try:
        await eventually_async(lambda: socks_answer(free, ("127.0.0.1", 8888)) == b"inside", within=60)
    finally:
        proxy.kill()
        proxy.communicate()


async def test_the_outside_and_its_names_are_reached_from_a_dev_server(own: OwnNetworkWorld) -> None:
    networks = own.cluster._networks.own
    assert networks is not None
    seen = await own.ready(own.spec())
    number = networks.plan.probe_numbers[1]
    interface = f"gdprobe-{networks.plan.tag}"
    address = str(networks.plan.addresses(number).inside)

    def fetch_from_outside() -> str:
        with (
            probe._joined(networks.plan, number, interface, 1500) as namespace,
            listening(address, namespace, answer=b"outside") as (_, port),
        ):
            return own.ssh_now(seen, fetch(address, port)).stdout

    assert await asyncio.to_thread(fetch_from_outside) == "outside"
    assert "nameserver" in await own.out(seen, "cat /etc/resolv.conf")


async def test_a_command_that_starts_no_dev_servers_changes_nothing_of_the_networks(own: OwnNetworkWorld) -> None:
    """`gpu-dev-server expire`, beside the processor."""
    described = read_network_description(own.state_dir)
    assert "its own network" in described
    spec = own.spec()
    await own.ready(spec)
    other = LocalCluster(own.state_dir, own.nodes, own.clock, mode=own.mode, network=None)
    await other.start()
    try:
        await eventually_async(lambda: other.ensure_gone(spec.reservation_id))
    finally:
        await other.close()
    assert read_network_description(own.state_dir) == described
    networks = own.cluster._networks.own
    assert networks is not None
    await own.cluster.observe()
    await eventually_async(lambda: len(networks._held) <= len(networks._ready), within=60)


async def test_the_members_of_a_gang_are_in_one_network(own: OwnNetworkWorld) -> None:
    spec = own.spec(nodes=2)
    seen = await own.ready(spec)
    record = own.cluster._servers[spec.reservation_id].record
    assert record is not None
    names = (await own.out(seen, "echo $GPU_DEV_HOSTS")).split(",")
    ports = (await own.out(seen, "echo $GPU_DEV_SSH_PORTS")).split(",")
    assert [int(port) for port in ports] == list(record.ports)
    for name, port in zip(names, ports, strict=True):
        assert (await own.out(seen, f"timeout 10 bash -c 'exec 3<>/dev/tcp/{name}/{port}; head -c 4 <&3'")) == "SSH-"
    await own.out(seen, serve("$MASTER_PORT", "master"))
    pid = own.first_process(spec.reservation_id, rank=1).pid
    assert len({network_of(own.first_process(spec.reservation_id, rank).pid) for rank in (0, 1)}) == 1
    assert record.master_port is not None
    inside = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        with links.run_in_namespace(inside, socket.socket) as client:
            client.settimeout(10)
            client.connect(("127.0.0.1", record.master_port))
            assert client.recv(10) == b"master"
    finally:
        os.close(inside)


async def test_a_network_outlives_the_control_plane_and_ends_with_its_dev_server(own: OwnNetworkWorld) -> None:
    spec = own.spec()
    seen = await own.ready(spec)
    await own.out(seen, serve(8888, "still here"))
    networks, record = own.cluster._networks.own, own.cluster._servers[spec.reservation_id].record
    assert networks is not None
    assert record is not None
    assert record.network is not None
    interface = networks.plan.interface(record.network.number)
    async with own.nobody_watching():
        assert await through_stdio(own, seen, "127.0.0.1:8888") == "still here"
        assert interface in links.list_interfaces()
    found = await own.seen(spec.reservation_id)
    assert found is not None
    assert found.connection == seen.connection
    assert await through_stdio(own, found, "127.0.0.1:8888") == "still here"
    assert interface in links.list_interfaces()
    await own.gone(spec.reservation_id)
    await eventually_async(lambda: interface not in links.list_interfaces(), within=60)


async def test_a_dev_server_that_is_started_again_has_a_network_again(own: OwnNetworkWorld) -> None:
    spec = own.spec()
    await own.ready(spec)
    await own.kill(spec.reservation_id)
    await own.until(spec.reservation_id, ServerPhase.DEAD)
    seen = await own.ready(spec)
    assert set((await own.out(seen, "ls /sys/class/net")).split()) == {"lo", "eth0"}


async def test_dev_servers_of_a_shared_network_go_on_beside_those_with_their_own(own: OwnNetworkWorld) -> None:
    await own.cluster.close()
    older_spec = own.spec()
    cluster = LocalCluster(own.state_dir, own.nodes, own.clock, mode=own.mode, network=NetworkSetting.SHARED)
    own.cluster = cluster
    await cluster.start()
    older = await own.ready(older_spec)
    await cluster.close()
    await own.open()
    found = await own.seen(older_spec.reservation_id)
    assert found is not None
    assert found.connection == older.connection
    assert await own.out(found, "readlink /proc/self/ns/net") == network_of(os.getpid())
    newer = await own.ready(own.spec())
    assert await own.out(newer, "readlink /proc/self/ns/net") != network_of(os.getpid())
