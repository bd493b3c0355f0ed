"""What a dev server is made of. Whether the API server takes it is tested with a real one."""

import base64
from dataclasses import replace
from typing import Any

import pytest

from gpudev.adapters.key_pairs import generate_key_pair, parse_key_pair
from gpudev.adapters.kubernetes.objects import (
    compute_resources,
    labels,
    network_policies,
    secret_files,
    server_manifests,
)
from gpudev.adapters.kubernetes.objects.compute_resources import CpuMemory
from gpudev.adapters.kubernetes.objects.pod_manifest import (
    CAPABILITIES,
    MemberPlacement,
    StorageClaims,
    build_pod,
    choose_pull_policy,
)
from gpudev.adapters.kubernetes.objects.secret_files import ServerKeys
from gpudev.adapters.kubernetes.observation.pod_reports import parse_report
from gpudev.domain.cluster import load_catalogue
from gpudev.domain.errors import ClusterError
from gpudev.domain.ids import new_disk_id
from gpudev.ports.cluster import ServerSpec
from gpudev.settings import KubernetesSettings
from support.kubernetes.server_specs import PUBLIC_KEY, server_spec

SETTINGS = KubernetesSettings()
ROOM = CpuMemory(4000, 8192)
_BASELINE = {
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP"),
    *("SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
}


def _pod(spec: ServerSpec, rank: int = 0, settings: KubernetesSettings = SETTINGS, **storage: Any) -> dict[str, Any]:
    return build_pod(
        spec, MemberPlacement(spec.shares[rank], ROOM), settings, StorageClaims(**storage), "ssh-ed25519 AAAA"
    )


def _main(manifest: dict[str, Any]) -> dict[str, Any]:
    [container] = manifest["spec"]["containers"]
    return dict(container)


def _volume(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    [found] = [volume for volume in manifest["spec"]["volumes"] if volume["name"] == name]
    return dict(found)


def _file(secret: dict[str, Any], name: str) -> str:
    return base64.b64decode(secret["data"][name]).decode()


def _keys(*, gang: bool = False) -> ServerKeys:
    return ServerKeys(generate_key_pair(), generate_key_pair() if gang else None)


def test_a_pod_may_run_on_the_planned_node_and_on_no_other() -> None:
    affinity = _pod(server_spec("gpu-17"))["spec"]["affinity"]["nodeAffinity"]
    [term] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-17"]}]}
    assert "nodeName" not in _pod(server_spec("gpu-17"))["spec"], "the scheduler places it"


def test_whoever_saves_nodes_is_asked_to_leave_a_dev_server_where_it_is() -> None:
    notes = _pod(server_spec())["metadata"]["annotations"]
    assert notes["karpenter.sh/do-not-disrupt"] == "true"
    assert notes["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"


def test_a_pod_asks_for_its_gpus_and_for_its_part_of_the_node() -> None:
    resources = _main(_pod(server_spec(units=2)))["resources"]
    assert resources["limits"] == {"cpu": "4000m", "memory": "8192Mi", "nvidia.com/gpu": "2"}
    assert resources["requests"] == resources["limits"]


def test_a_cpu_dev_server_asks_for_no_gpu_and_is_shown_none() -> None:
    container = _main(_pod(server_spec(gpu_type="cpu-x86", gpu_count=0)))
    assert "nvidia.com/gpu" not in container["resources"]["limits"]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in container["env"]


def test_a_pod_is_given_no_power_over_the_cluster_or_the_node() -> None:
    spec = _pod(server_spec())["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert not [volume for volume in spec["volumes"] if "hostPath" in volume]
    security = _main({"spec": spec})["securityContext"]
    assert security["privileged"] is False
    assert security["capabilities"]["drop"] == ["ALL"]
    assert set(CAPABILITIES) <= _BASELINE


def test_what_brings_the_ssh_server_along_is_nobody_and_can_write_nowhere_else() -> None:
    [init] = _pod(server_spec())["spec"]["initContainers"]
    assert init["image"] == SETTINGS.init_image
    assert init["command"] == ["/gpudev-devserver", "install", "--to", "/gpudev/bin"]
    security = init["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert [mount["mountPath"] for mount in init["volumeMounts"]] == ["/gpudev/bin"]


def test_nobody_inside_can_change_what_brought_them_in() -> None:
    mounts = {mount["mountPath"]: mount for mount in _main(_pod(server_spec()))["volumeMounts"]}
    assert mounts["/gpudev/bin"]["readOnly"] is True
    assert mounts["/gpudev/config"]["readOnly"] is True
    assert _volume(_pod(server_spec()), "config")["secret"]["defaultMode"] == 0o400


def test_home_and_workspace_are_scratch_unless_there_are_claims() -> None:
    bare = _pod(server_spec())
    assert _volume(bare, "home") == {"name": "home", "emptyDir": {}}
    assert _volume(bare, "workspace")["emptyDir"] == {"sizeLimit": "100Gi"}
    kept = _pod(server_spec(), home_claim="disk-1", workspace_claim="shared-ada")
    assert _volume(kept, "home")["persistentVolumeClaim"] == {"claimName": "disk-1"}
    assert _volume(kept, "workspace")["persistentVolumeClaim"] == {"claimName": "shared-ada"}


def test_shared_memory_is_part_of_the_memory_and_not_the_runtimes_64_megabytes() -> None:
    shm = _volume(_pod(server_spec()), "shm")["emptyDir"]
    assert shm == {"medium": "Memory", "sizeLimit": "4096Mi"}


def test_readiness_is_the_ssh_port_answering() -> None:
    container = _main(_pod(server_spec()))
    assert container["readinessProbe"]["tcpSocket"] == {"port": container["ports"][0]["containerPort"]}


def test_any_image_may_be_asked_for() -> None:
    assert _main(_pod(server_spec()))["image"] == "pytorch/pytorch:2.8.0-cuda12.9-cudnn9-devel"
    assert _main(_pod(server_spec(image="ghcr.io/me/mine:3")))["image"] == "ghcr.io/me/mine:3"


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("pytorch/pytorch:2.8.0", "IfNotPresent"),
        ("registry.example:5000/a/b:1", "IfNotPresent"),
        ("a/b@sha256:" + "0" * 64, "IfNotPresent"),
        ("a/b:latest", "Always"),
        ("a/b", "Always"),
        ("registry.example:5000/a/b", "Always"),
    ],
)
def test_an_image_name_that_may_change_its_meaning_is_asked_for_again(image: str, policy: str) -> None:
    assert choose_pull_policy(image, SETTINGS) == policy
    assert choose_pull_policy(image, replace(SETTINGS, image_pull_policy="Never")) == "Never"


def test_the_way_in_leads_to_the_first_member_by_a_port_the_api_server_chooses() -> None:
    spec = server_spec("a", "b")
    service = server_manifests.build_ssh_service(spec, SETTINGS, "key")
    assert service["spec"]["type"] == "NodePort"
    assert service["spec"]["selector"] == {labels.RESERVATION_ID: str(spec.reservation_id), labels.RANK: "0"}
    assert "nodePort" not in service["spec"]["ports"][0]


def test_everything_made_for_a_reservation_carries_its_id() -> None:
    spec = server_spec("a", "b")
    made = [
        server_manifests.build_secret(spec, _keys(gang=True), SETTINGS, home_is_kept=False),
        server_manifests.build_ssh_service(spec, SETTINGS, "key"),
        *server_manifests.build_gang_objects(spec, SETTINGS, "key"),
        _pod(spec, 0),
        _pod(spec, 1),
    ]
    assert all(labels.belongs_to(manifest, spec.reservation_id) for manifest in made)
    named = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in made]
    assert len(set(named)) == len(named)
    assert {manifest["metadata"]["namespace"] for manifest in made} == {"gpu-dev"}


def test_a_single_dev_server_needs_nothing_for_a_gang() -> None:
    assert server_manifests.build_gang_objects(server_spec(), SETTINGS, "key") == []
    assert "MASTER_ADDR" not in secret_files.build_environment(server_spec(), server_spec().shares[0])


def test_the_members_of_a_gang_find_each_other_by_name() -> None:
    spec = server_spec("a", "b", units=8)
    headless, policy = server_manifests.build_gang_objects(spec, SETTINGS, "key")
    first, second = (_pod(spec, rank)["spec"] for rank in (0, 1))
    assert headless["spec"]["clusterIP"] == "None"
    assert headless["spec"]["publishNotReadyAddresses"] is True
    assert first["subdomain"] == second["subdomain"] == headless["metadata"]["name"]
    environment = secret_files.build_environment(spec, spec.shares[1])
    assert environment["MASTER_ADDR"] == f"{first['hostname']}.{first['subdomain']}"
    assert (environment["NODE_RANK"], environment["WORLD_SIZE"]) == ("1", "2")
    assert policy["spec"]["ingress"] == [{"from": policy["spec"]["egress"][0]["to"]}]


def test_each_member_is_told_its_own_rank_under_the_same_file_name() -> None:
    spec = server_spec("a", "b")
    secret = server_manifests.build_secret(spec, _keys(gang=True), SETTINGS, home_is_kept=False)
    for rank in (0, 1):
        items = {item["path"]: item["key"] for item in _volume(_pod(spec, rank), "config")["secret"]["items"]}
        assert f"NODE_RANK={rank}\n" in _file(secret, items["environment"])
        assert set(items.values()) <= secret["data"].keys()


def test_what_the_owner_brings_is_in_the_secret_alone_and_every_member_finds_it() -> None:
    brought = {"PIN": "planted 4711\nin two lines", "GPU_DEV_USER": "mallory"}
    script = "#!/bin/sh\n# planted\n"
    url = "https://git.example.com/planted"
    spec = server_spec("a", "b", environment=brought, dotfiles=url, startup_script=script)
    secret = server_manifests.build_secret(spec, _keys(gang=True), SETTINGS, home_is_kept=False)
    for rank in (0, 1):
        pod = _pod(spec, rank)
        items = {item["path"]: item["key"] for item in _volume(pod, "config")["secret"]["items"]}
        assert _file(secret, items["own_variables"]) == "PIN=planted 4711\nin two lines\0GPU_DEV_USER=mallory\0"
        assert (_file(secret, items["dotfiles"]), _file(secret, items["startup_script"])) == (url, script)
        assert "mallory" not in _file(secret, items["environment"])
        assert pod["metadata"]["annotations"]["gpu-dev/own-setup"] == "yes"
        assert "planted" not in repr(pod)
    assert "planted" not in repr({**secret, "data": None})


def test_who_brings_nothing_has_no_such_files() -> None:
    spec = server_spec("a")
    data = server_manifests.build_secret(spec, _keys(gang=False), SETTINGS, home_is_kept=False)["data"]
    items = {item["key"] for item in _volume(_pod(spec, 0), "config")["secret"]["items"]}
    assert not {"own_variables", "dotfiles", "startup_script"} & (data.keys() | items)
    assert "gpu-dev/own-setup" not in _pod(spec, 0)["metadata"]["annotations"]


@pytest.mark.parametrize(
    "said", [b"", b"nonsense", b"[]", b'{"words": 1, "final": true}', b'{"words": "x"}', b'{"words":"x","final":"no"}']
)
def test_what_a_dev_server_says_of_its_set_up_is_not_believed_to_be_anything(said: bytes) -> None:
    with pytest.raises(ClusterError):
        parse_report(said)


def test_words_of_a_set_up_are_cut_and_hold_nothing_that_a_terminal_would_obey() -> None:
    told = parse_report(b'{"words": "done\\u001b[2J' + b"x" * 5000 + b'", "final": true}')
    assert told.is_final
    assert told.summary.startswith("done[2Jxx")
    assert len(told.summary) == 1000


def test_the_members_addresses_become_lines_of_a_hosts_file() -> None:
    spec = server_spec("a", "b")
    assert secret_files.format_hosts(spec.pod_name, {1: "10.0.0.5", 0: "10.0.0.4"}).splitlines()[1].split() == [
        "10.0.0.5",
        f"{spec.pod_name}-1.{spec.pod_name}-gang",
        f"{spec.pod_name}-1",
    ]


def test_gang_members_may_log_in_to_each_other_and_a_single_one_has_no_such_key() -> None:
    gang, keys = server_spec("a", "b"), _keys(gang=True)
    secret = server_manifests.build_secret(gang, keys, SETTINGS, home_is_kept=False)
    assert keys.mesh is not None
    assert _file(secret, "authorized_keys").splitlines() == [PUBLIC_KEY, f"{keys.mesh.public} gang"]
    assert _file(secret, "mesh_key") == keys.mesh.private
    assert "mesh_key" not in server_manifests.build_secret(server_spec(), _keys(), SETTINGS, home_is_kept=False)["data"]


def test_the_private_keys_are_in_the_secret_and_nowhere_else() -> None:
    spec, keys = server_spec("a", "b"), _keys(gang=True)
    shown = str([_pod(spec), server_manifests.build_ssh_service(spec, SETTINGS, keys.host.public), keys])
    assert "PRIVATE KEY" not in shown
    assert (
        parse_key_pair(
            _file(server_manifests.build_secret(spec, keys, SETTINGS, home_is_kept=False), "host_key")
        ).public
        == keys.host.public
    )


def test_whoever_logs_in_reads_where_they_are_and_what_is_kept() -> None:
    spec = server_spec("a", "b", units=8, disk_id=new_disk_id(), disk_name="work")
    secret = server_manifests.build_secret(spec, _keys(gang=True), SETTINGS, home_is_kept=True)
    greeting = _file(secret, "greeting-1")
    assert "16 × h100 on b" in greeting
    assert "scratch space that ends with the reservation; your disk 'work' is on node 0" in greeting
    assert "your disk 'work', kept for next time" in _file(secret, "greeting-0")
    assert "torchrun --nnodes $WORLD_SIZE --nproc-per-node 8 --node-rank $NODE_RANK" in greeting


def test_shared_storage_is_the_users_and_outlives_reservations() -> None:
    assert server_manifests.build_shared_claim("ada", SETTINGS) is None
    claim = server_manifests.build_shared_claim("ada", replace(SETTINGS, shared_storage_class="nfs"))
    assert claim is not None
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert claim["spec"]["storageClassName"] == "nfs"
    assert labels.RESERVATION_ID not in claim["metadata"]["labels"]


def test_a_file_system_of_the_cloud_becomes_a_storage_class_that_keeps_what_it_holds() -> None:
    settings = replace(SETTINGS, efs_file_system_id="fs-1")
    storage_class, claim = (
        server_manifests.build_efs_storage_class(settings),
        server_manifests.build_shared_claim("ada", settings),
    )
    assert storage_class is not None
    assert claim is not None
    assert claim["spec"]["storageClassName"] == storage_class["metadata"]["name"]
    assert storage_class["reclaimPolicy"] == "Retain"
    assert server_manifests.build_efs_storage_class(replace(settings, shared_storage_class="nfs")) is None


def test_dev_servers_reach_the_internet_but_neither_the_cluster_nor_the_metadata_address() -> None:
    spec = network_policies.build_dev_server_policy(SETTINGS)["spec"]
    open_blocks = [peer["ipBlock"] for rule in spec["egress"] if "ports" not in rule for peer in rule["to"]]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    for address in ("169.254.169.254", "10.96.0.1", "172.20.0.1", "192.168.1.1", "100.64.0.9", "fd00:ec2::254"):
        assert not _allows(open_blocks, address), address
    assert _allows(open_blocks, "1.1.1.1")
    assert _allows(open_blocks, "2606:4700:4700::1111")
    assert spec["ingress"] == [{"ports": [{"protocol": "TCP", "port": 22}]}]


def test_a_private_network_can_be_allowed_by_name() -> None:
    settings = replace(SETTINGS, allowed_cidrs=("10.20.0.0/16",))
    rules = network_policies.build_dev_server_policy(settings)["spec"]["egress"]
    blocks = [peer["ipBlock"] for rule in rules if "ports" not in rule for peer in rule["to"]]
    assert _allows(blocks, "10.20.3.4")
    assert not _allows(blocks, "10.21.3.4")


def _allows(blocks: list[dict[str, Any]], address: str) -> bool:
    from ipaddress import ip_address, ip_network

    def within(cidr: str) -> bool:
        return ip_address(address) in ip_network(cidr)

    return any(within(b["cidr"]) and not any(within(c) for c in b.get("except", ())) for b in blocks)


def test_all_shares_of_a_node_together_leave_something_to_the_system() -> None:
    for gpu_type in load_catalogue().values():
        room, units = compute_resources.catalogue_resources(gpu_type), gpu_type.units_per_node
        one, whole = (
            compute_resources.compute_share(room, 1, units),
            compute_resources.compute_share(room, units, units),
        )
        assert units * one.cpu_millis <= whole.cpu_millis < room.cpu_millis
        assert units * one.memory_mib <= whole.memory_mib < room.memory_mib


def test_what_the_node_says_of_itself_is_understood() -> None:
    assert compute_resources.parse_allocatable({"cpu": "191450m", "memory": "2063937412Ki"}) == CpuMemory(
        191450, 2015563
    )
    assert compute_resources.parse_allocatable({"cpu": "2", "memory": "24Gi"}) == CpuMemory(2000, 24576)
    assert compute_resources.parse_allocatable({"cpu": "1.5", "memory": "1e9"}) == CpuMemory(1500, 953)
    assert compute_resources.parse_allocatable({"cpu": "many"}) is None
