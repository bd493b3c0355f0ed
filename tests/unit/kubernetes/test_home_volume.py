"""What stands for a disk's volume in the cluster, and that a disk is mounted where it should be and nowhere else."""

from dataclasses import replace
from typing import Any

import pytest

from gpudev.adapters.key_pairs import KeyPair
from gpudev.adapters.kubernetes.objects import labels
from gpudev.adapters.kubernetes.objects.compute_resources import CpuMemory
from gpudev.adapters.kubernetes.objects.pod_manifest import MemberPlacement, StorageClaims, build_pod
from gpudev.adapters.kubernetes.objects.secret_files import ServerKeys, build_secret_data, decode_secret_value
from gpudev.adapters.kubernetes.objects.server_manifests import (
    build_home_claim,
    build_persistent_volume,
    choose_access_mode,
    find_capacity_patch,
    find_volume_handle,
    volume_selector,
)
from gpudev.domain.errors import ClusterError
from gpudev.domain.ids import new_disk_id
from gpudev.ports.cluster import HomeVolume, ServerSpec
from gpudev.settings import KubernetesSettings, Settings, load_settings
from support.kubernetes.server_specs import server_spec

ON_AWS = load_settings({"GPU_DEV_CLUSTER": "kubernetes", "GPU_DEV_CLOUD": "aws"}).kubernetes
ON_GCP = load_settings({"GPU_DEV_CLUSTER": "kubernetes", "GPU_DEV_CLOUD": "gcp"}).kubernetes
EBS = HomeVolume("vol-0a1b2c3d4e5f60718", 200, "us-east-1a")
PD = HomeVolume("projects/lab/zones/us-central1-a/disks/gpu-dev-1", 50, "us-central1-a")
KEYS = ServerKeys(KeyPair("private host", "ssh-ed25519 host"), KeyPair("private mesh", "ssh-ed25519 mesh"))


def with_disk(*nodes: str, volume: HomeVolume = EBS, **more: Any) -> ServerSpec:
    return server_spec(*nodes, disk_id=new_disk_id(), disk_name="data", volume=volume, **more)


def _pair(spec: ServerSpec, settings: KubernetesSettings = ON_AWS) -> tuple[dict[str, Any], dict[str, Any]]:
    assert spec.volume is not None
    access = "ReadWriteOncePod"
    return build_persistent_volume(spec, spec.volume, settings, access), build_home_claim(
        spec, spec.volume, settings, access
    )


@pytest.mark.parametrize(
    ("settings", "volume", "driver", "label"),
    [
        (ON_AWS, EBS, "ebs.csi.aws.com", "topology.ebs.csi.aws.com/zone"),
        (ON_GCP, PD, "pd.csi.storage.gke.io", "topology.gke.io/zone"),
    ],
    ids=["aws", "gcp"],
)
def test_the_volume_is_attached_by_the_clouds_driver_in_its_zone(
    settings: KubernetesSettings, volume: HomeVolume, driver: str, label: str
) -> None:
    persistent, _ = _pair(with_disk(volume=volume), settings)
    assert persistent["spec"]["csi"] == {"driver": driver, "volumeHandle": volume.volume_id, "fsType": "ext4"}
    [term] = persistent["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": label, "operator": "In", "values": [volume.zone]}]


def test_driver_label_and_file_system_can_be_chosen() -> None:
    chosen = {"GPU_DEV_DISK_DRIVER": "x.csi", "GPU_DEV_DISK_ZONE_LABEL": "x/zone", "GPU_DEV_DISK_FS_TYPE": "xfs"}
    settings = load_settings({"GPU_DEV_CLOUD": "aws", **chosen}).kubernetes
    persistent, _ = _pair(with_disk(), settings)
    assert (persistent["spec"]["csi"]["driver"], persistent["spec"]["csi"]["fsType"]) == ("x.csi", "xfs")
    assert "x/zone" in str(persistent["spec"]["nodeAffinity"])


def test_nothing_that_happens_to_the_objects_removes_the_volume() -> None:
    persistent, _ = _pair(with_disk())
    assert persistent["spec"]["persistentVolumeReclaimPolicy"] == "Retain"


def test_volume_and_claim_are_for_each_other_and_nobody_else() -> None:
    spec = with_disk()
    persistent, claim = _pair(spec)
    assert persistent["metadata"]["name"] == claim["metadata"]["name"] == f"{spec.pod_name}-home"
    assert claim["spec"]["volumeName"] == persistent["metadata"]["name"]
    wanted = persistent["spec"]["claimRef"]
    assert (wanted["namespace"], wanted["name"]) == (claim["metadata"]["namespace"], claim["metadata"]["name"])
    assert persistent["spec"]["storageClassName"] == claim["spec"]["storageClassName"] == ""
    assert persistent["spec"]["accessModes"] == claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    assert persistent["spec"]["capacity"] == claim["spec"]["resources"]["requests"] == {"storage": "200Gi"}


def test_both_carry_the_reservations_id_and_tell_whose_disk_it_is() -> None:
    spec = with_disk(username="ada@example.org")
    for made in _pair(spec):
        assert labels.belongs_to(made, spec.reservation_id)
        assert made["metadata"]["annotations"] == {labels.USERNAME: "ada@example.org", labels.DISK_NAME: "data"}


def test_all_that_stands_for_one_volume_is_found_by_it() -> None:
    persistent, _ = _pair(with_disk(volume=PD))
    wanted = dict(part.split("=", 1) for part in volume_selector(PD).split(","))
    assert wanted.items() <= persistent["metadata"]["labels"].items()
    assert volume_selector(replace(PD, volume_id=PD.volume_id + "2")) != volume_selector(PD)


def test_a_volume_that_has_grown_is_told_so() -> None:
    persistent, _ = _pair(with_disk())
    assert find_capacity_patch(persistent, EBS) is None
    assert find_capacity_patch(persistent, replace(EBS, size_gb=300)) == {"spec": {"capacity": {"storage": "300Gi"}}}
    assert find_volume_handle(persistent) == EBS.volume_id


@pytest.mark.parametrize(
    ("version", "mode"),
    [
        ("v1.36.3", "ReadWriteOncePod"),
        ("v1.29.0-eks-a5df82a", "ReadWriteOncePod"),
        ("v1.30.5-gke.1014001", "ReadWriteOncePod"),
        ("v2.0.0", "ReadWriteOncePod"),
        ("v1.28.15", "ReadWriteOnce"),
        ("v1.9.3", "ReadWriteOnce"),
        ("unknown", "ReadWriteOnce"),
    ],
)
def test_one_pod_at_a_time_where_the_api_server_knows_that(version: str, mode: str) -> None:
    assert choose_access_mode(version) == mode


def test_without_a_driver_a_disk_is_refused_and_not_left_out() -> None:
    with pytest.raises(ClusterError, match="'data' cannot be attached"):
        _pair(with_disk(), KubernetesSettings())


def test_a_volume_without_a_known_zone_may_be_anywhere() -> None:
    persistent, _ = _pair(with_disk(volume=replace(EBS, zone="")))
    assert "nodeAffinity" not in persistent["spec"]


def _home(spec: ServerSpec, rank: int) -> Any:
    made = build_pod(
        spec,
        MemberPlacement(spec.shares[rank], CpuMemory(1000, 1024)),
        ON_AWS,
        StorageClaims("the-claim"),
        "ssh-ed25519 host",
    )
    [volume] = [one for one in made["spec"]["volumes"] if one["name"] == "home"]
    return volume


def test_of_a_gang_only_the_member_where_people_log_in_has_the_disk() -> None:
    spec = with_disk("a", "b", units=8)
    assert _home(spec, 0) == {"name": "home", "persistentVolumeClaim": {"claimName": "the-claim"}}
    assert _home(spec, 1) == {"name": "home", "emptyDir": {}}
    files = build_secret_data(spec, KEYS, home_is_kept=True)
    assert "your disk 'data', kept for next time" in decode_secret_value(files["greeting-0"])
    assert "scratch space that ends with the reservation; your disk 'data' is on node 0" in decode_secret_value(
        files["greeting-1"]
    )


@pytest.mark.parametrize(
    ("settings", "has_disks"),
    [
        (Settings(), True),
        (Settings(cluster="kubernetes"), False),
        (Settings(cluster="kubernetes", cloud="aws"), True),
        (Settings(cluster="kubernetes", cloud="gcp"), True),
    ],
)
def test_there_are_disks_where_something_keeps_them(settings: Settings, has_disks: bool) -> None:
    assert settings.has_disks is has_disks
