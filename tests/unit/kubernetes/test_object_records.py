"""Of listed nodes and pods only that is read which somebody asks for, and all of that."""

from typing import Any, get_args, is_typeddict

import orjson
import pytest

from gpudev.adapters.kubernetes.cache import object_records
from gpudev.adapters.kubernetes.cache.object_records import NodeRecord, PodRecord, to_node_record, to_pod_record
from gpudev.adapters.kubernetes.client.kubernetes_api import decode_list
from gpudev.adapters.kubernetes.objects import labels
from gpudev.domain.errors import Unavailable
from support.kubernetes import objects

_AMOUNTS = {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"}
_RESOURCES = {"requests": _AMOUNTS, "limits": _AMOUNTS}


def _rich_pod() -> objects.Object:
    """Ours, and with everything about it that could matter."""
    pod = objects.own_pod(
        phase="Failed",
        init=objects.ended(0, "Completed"),
        main=objects.waiting("CrashLoopBackOff", "back-off"),
        last=objects.ended(137, "OOMKilled", message="killed"),
        conditions=[
            objects.condition("DisruptionTarget", "True", reason="Preempted", message="for another"),
            objects.condition("PodReadyToStartContainers", "True"),
            objects.condition("Ready", "False"),
        ],
        deleting=True,
        reason="Evicted",
        message="the node was low on memory",
    )
    pod["metadata"]["annotations"] = {labels.PLANNED_NODE: "n1", labels.HOST_KEY: "key", labels.PERSONALIZATION: "yes"}
    pod["metadata"]["creationTimestamp"] = objects.ago(90)
    pod["metadata"]["managedFields"] = [{"manager": "nobody reads this"}]
    pod["spec"]["containers"][0]["resources"] = _RESOURCES
    pod["spec"]["initContainers"] = [
        {"name": "side", "image": "x", "restartPolicy": "Always", "resources": _RESOURCES},
        *(pod["spec"].get("initContainers") or []),
    ]
    pod["spec"]["overhead"] = {"cpu": "250m"}
    pod["spec"]["resources"] = {"requests": {"memory": "64Gi"}}
    return pod


def _daemon() -> objects.Object:
    pod = objects.pod()
    pod["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "name": "d", "controller": True}]
    return pod


def _rich_node() -> objects.Object:
    node = objects.node(unschedulable=True, taints=[{"key": "a", "effect": "NoSchedule"}], instance_type="p5.48xlarge")
    node["metadata"]["labels"] |= {"topology.kubernetes.io/zone": "z1", "nvidia.com/gpu.product": "NVIDIA-L4"}
    return node


def _trim_pod(pod: Any) -> PodRecord | None:
    return to_pod_record(pod, "gpu-dev", "nvidia.com/gpu")


def _trim_node(node: Any) -> NodeRecord:
    return to_node_record(node, "GpuType", "nvidia.com/gpu")


CASES = [
    pytest.param(object_records.PodFields, _rich_pod(), _trim_pod, id="pod"),
    pytest.param(object_records.PodFields, objects.pod(), _trim_pod, id="somebody's pod"),
    pytest.param(object_records.PodFields, _daemon(), _trim_pod, id="a daemon's pod"),
    pytest.param(object_records.PodFields, objects.pod(node=None), _trim_pod, id="a pod without a node"),
    pytest.param(object_records.NodeFields, _rich_node(), _trim_node, id="node"),
]


class Asked(dict[str, Any]):
    """Remembers what it was asked for, and what of it."""

    def __init__(self, found: dict[str, Any], where: str, paths: set[str]) -> None:
        super().__init__({key: _wrap(value, f"{where}.{key}", paths) for key, value in found.items()})
        self._where, self._paths = where, paths

    def __getitem__(self, key: str) -> Any:
        self._paths.add(f"{self._where}.{key}")
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._paths.add(f"{self._where}.{key}")
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self._paths.add(f"{self._where}.{key}")
        return super().__contains__(key)


def _wrap(value: Any, where: str, paths: set[str]) -> Any:
    if isinstance(value, dict):
        return Asked(value, where, paths)
    if isinstance(value, list):
        return [_wrap(each, where, paths) for each in value]
    return value


def _is_read(shape: Any, path: list[str]) -> bool:
    """Whether a shape keeps what is at the end of that path."""
    if not path:
        return True
    if is_typeddict(shape):
        fields = shape.__annotations__
        return path[0] in fields and _is_read(fields[path[0]], path[1:])
    inside = get_args(shape)
    if inside and not any(is_typeddict(part) or get_args(part) for part in inside):
        return True  # a plain dict: all of it
    return any(_is_read(part, path) for part in inside if part is not type(None))


@pytest.mark.parametrize(("shape", "manifest", "trim"), CASES)
def test_everything_that_is_asked_for_is_read(shape: type, manifest: objects.Object, trim: Any) -> None:
    paths: set[str] = set()
    trim(Asked(manifest, "", paths))
    assert len(paths) > 10
    assert [path for path in sorted(paths) if not _is_read(shape, path.removeprefix(".").split("."))] == []


@pytest.mark.parametrize(("shape", "manifest", "trim"), CASES)
def test_what_is_read_of_it_means_the_same_as_all_of_it(shape: type, manifest: objects.Object, trim: Any) -> None:
    listing = decode_list(orjson.dumps({"metadata": {"resourceVersion": "7"}, "items": [manifest]}))
    (short,), (whole,) = listing.decode_items(shape), listing.decode_items()
    assert whole == manifest
    assert trim(short) == trim(whole)
    assert "managedFields" not in short["metadata"]


def test_a_field_that_no_shape_has_would_be_noticed() -> None:
    assert not _is_read(object_records.PodFields, ["spec", "hostNetwork"])
    assert not _is_read(object_records.PodFields, ["spec", "containers", "ports"])
    assert _is_read(object_records.PodFields, ["spec", "containers", "resources", "limits", "cpu"])


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"items": []}', b'{"metadata": {"resourceVersion": "1"}, "items"'])
def test_what_is_no_listing_is_unavailable(body: bytes) -> None:
    with pytest.raises(Unavailable, match="unreadable response"):
        decode_list(body)


def test_objects_that_make_no_sense_are_unavailable() -> None:
    listing = decode_list(b'{"metadata": {"resourceVersion": "1"}, "items": [{"metadata": 5}]}')
    with pytest.raises(Unavailable, match="unreadable response"):
        listing.decode_items(object_records.PodFields)


@pytest.mark.parametrize("items", [b"null", b"[]"])
def test_an_empty_listing_has_nothing(items: bytes) -> None:
    listing = decode_list(b'{"metadata": {"resourceVersion": "1", "continue": "on"}, "items": ' + items + b"}")
    assert (list(listing.decode_items(object_records.NodeFields)), listing.continue_token) == ([], "on")
