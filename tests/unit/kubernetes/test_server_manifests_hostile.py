"""Whatever people type stays data: it never changes what a dev server is made of."""

import base64
import json
import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpudev.adapters.key_pairs import KeyPair
from gpudev.adapters.kubernetes.objects import labels, server_manifests
from gpudev.adapters.kubernetes.objects.compute_resources import CpuMemory
from gpudev.adapters.kubernetes.objects.pod_manifest import MemberPlacement, StorageClaims, build_pod
from gpudev.adapters.kubernetes.objects.secret_files import ServerKeys
from gpudev.adapters.kubernetes.objects.server_manifests import build_home_claim, build_persistent_volume
from gpudev.ports.cluster import HomeVolume, ServerSpec
from gpudev.settings import KubernetesSettings
from support.kubernetes.server_specs import server_spec

SETTINGS = KubernetesSettings(shared_storage_class="nfs", disk_driver="ebs.csi.aws.com", disk_zone_label="zone")
KEYS = ServerKeys(KeyPair("private host", "ssh-ed25519 host"), KeyPair("private mesh", "ssh-ed25519 mesh"))
_LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?")
_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")

nasty = st.one_of(
    st.text(max_size=300),
    st.text(alphabet=st.characters(codec=None), max_size=20),
    st.sampled_from(
        [
            "$(GPU_DEV_USER)",
            "`id`; rm -rf ~",
            "a\nnodeName: other",
            '"}],"hostNetwork":true,"x":[{"',
            "../../etc/passwd",
            "-" * 80,
            "ada@example.org",
            "\ud800",
            "\0",
            "🦊" * 70,
        ]
    ),
)


def _made(spec: ServerSpec) -> list[dict[str, Any]]:
    claim = server_manifests.build_shared_claim(spec.username, SETTINGS)
    assert claim is not None
    volume = spec.volume or HomeVolume("vol-1", 1, "zone-a")
    return [
        build_persistent_volume(spec, volume, SETTINGS, "ReadWriteOncePod"),
        build_home_claim(spec, volume, SETTINGS, "ReadWriteOncePod"),
        server_manifests.build_secret(spec, KEYS, SETTINGS, home_is_kept=False),
        server_manifests.build_ssh_service(spec, SETTINGS, KEYS.host.public),
        *server_manifests.build_gang_objects(spec, SETTINGS, KEYS.host.public),
        *(
            build_pod(spec, MemberPlacement(share, CpuMemory(1000, 1024)), SETTINGS, StorageClaims(), KEYS.host.public)
            for share in spec.shares
        ),
        claim,
    ]


def _shape(value: Any) -> Any:
    """Its structure, with every text forgotten."""
    match value:
        case dict():
            return {key: _shape(inner) for key, inner in value.items()}
        case list():
            return [_shape(inner) for inner in value]
        case _:
            return type(value).__name__


_BROUGHT = {"dotfiles": "https://x/y", "startup_script": "true"}
_PLAIN = server_spec("a", "b", name="mine", image="img", environment={"A": "b"}, disk_name="data", **_BROUGHT)


@settings(max_examples=300, deadline=None)
@given(username=nasty, name=nasty, image=nasty, key=nasty, value=nasty, gpu_type=nasty, disk=nasty, volume=nasty)
def test_nothing_typed_changes_the_structure_of_what_is_made(
    username: str, name: str, image: str, key: str, value: str, gpu_type: str, disk: str, volume: str
) -> None:
    spec = server_spec(
        "a",
        "b",
        username=username,
        name=name,
        image=image,
        ssh_public_keys=(key,),
        environment={"A": value},
        dotfiles=value,
        startup_script=value,
        gpu_type=gpu_type,
        disk_name=disk,
        volume=HomeVolume(volume, 7, "zone-b"),
    )
    made = _made(spec)
    assert _shape(made) == _shape(_made(_PLAIN))
    for manifest in made:
        metadata = manifest["metadata"]
        assert _NAME.fullmatch(metadata["name"])
        assert len(metadata["name"]) <= 63
        assert all(_LABEL.fullmatch(text) and len(text) <= 63 for text in metadata["labels"].values())


@settings(max_examples=200, deadline=None)
@given(username=nasty, name=nasty, value=nasty, key=nasty, image=nasty, disk=nasty)
def test_what_is_sent_is_always_text_that_can_be_sent(
    username: str, name: str, value: str, key: str, image: str, disk: str
) -> None:
    person = {"username": username, "name": name, "image": image, "disk_name": disk}
    spec = server_spec("a", "b", **person, environment={"A": value}, ssh_public_keys=(key,))
    json.dumps(_made(spec), ensure_ascii=False).encode()


@settings(max_examples=300, deadline=None)
@given(username=nasty, name=nasty, value=nasty, variable=nasty, key=nasty)
def test_nothing_typed_begins_a_line_of_its_own_in_a_file(
    username: str, name: str, value: str, variable: str, key: str
) -> None:
    spec = server_spec(
        "a", "b", username=username, name=name, environment={variable: value, "A": value}, ssh_public_keys=(key, key)
    )
    data = server_manifests.build_secret(spec, KEYS, SETTINGS, home_is_kept=False)["data"]
    files = {path: base64.b64decode(text).decode() for path, text in data.items()}
    for rank in (0, 1):
        lines = files[f"environment-{rank}"].splitlines()
        names = [line.partition("=")[0] for line in lines]
        assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) for name in names)
        assert len(names) == len(set(names))
        assert f"NODE_RANK={rank}" in lines
    assert len(files["authorized_keys"].splitlines()) <= 3
    assert files["authorized_keys"].endswith("ssh-ed25519 mesh gang\n")


@given(one=nasty, other=nasty)
def test_two_users_never_share_one_claim(one: str, other: str) -> None:
    assert (labels.shared_claim_name(one) == labels.shared_claim_name(other)) == (one == other)


def test_nobody_can_choose_a_name_that_becomes_anothers_claim() -> None:
    derived = labels.shared_claim_name("ada@example.org").removeprefix("gpu-dev-shared-")
    assert labels.shared_claim_name(derived) != labels.shared_claim_name("ada@example.org")


def test_user_names_stay_readable_in_labels() -> None:
    assert labels.to_label_value("ada") == "ada"
    assert labels.to_label_value("ada.l_2-x") == "ada.l_2-x"
    assert labels.to_label_value("ada@example.org").startswith("ada_example.org.")
