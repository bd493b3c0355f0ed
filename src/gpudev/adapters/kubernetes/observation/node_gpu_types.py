"""Which GPU type a node is of: pure. Its own label says so; where it has none, its instance type does through the
catalogue, else what others' labels call its GPUs: NVIDIA's feature discovery, Google's node pools, Karpenter.

GPUs that are cut into slices or handed out several times are no GPUs of any type, whatever the machine is: only a label
of ours, by which somebody means it, makes them one.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

from gpudev.adapters.kubernetes.cache.object_records import NodeRecord
from gpudev.domain.cluster import Catalogue, GpuType

_WORD = re.compile(r"[a-z0-9]+")


def find_gpu_type(
    record: NodeRecord, catalogue: Catalogue, by_instance: Mapping[str, GpuType], label: str
) -> GpuType | str:
    """Its type, or why it has none, in words. A label that names no type is not overruled: somebody meant it."""
    if record.type_label is not None:
        known = catalogue.get(record.type_label) or catalogue.get(record.type_label.lower())
        return known or f"its label {label} says {record.type_label!r}, which is no GPU type"
    product = record.product
    if product is not None and (how := _describe_sharing(product)) is not None:
        return f"its GPUs are {how} ({product}); a label {label} makes them GPUs of a type all the same"
    if record.instance_type is not None and record.instance_type in by_instance:
        return by_instance[record.instance_type]
    if product is not None:
        known = find_gpu_type_by_product(product, catalogue.values())
        return known or f"its GPU {product} is no GPU type's, and it has no label {label}"
    if record.instance_type is None:
        return f"it has neither a label {label} nor an instance type"
    return f"instance type {record.instance_type} is no GPU type's"


def gpu_types_by_instance(catalogue: Catalogue) -> dict[str, GpuType]:
    """An instance type that several GPU types share tells nothing, unless one alone of them is offered. Neither does a
    CPU type's: the control plane's own nodes are of such types too, and only a label says that one is for users."""
    sharing: defaultdict[str, list[GpuType]] = defaultdict(list)
    for gpu_type in catalogue.values():
        sharing[gpu_type.instance_type].append(gpu_type)
    chosen = ([one for one in types if one.is_active] or types for types in sharing.values())
    return {types[0].instance_type: types[0] for types in chosen if len(types) == 1 and not types[0].is_cpu}


def find_gpu_type_by_product(product: str, types: Iterable[GpuType]) -> GpuType | None:
    """Whose name's words are all in the product's ("NVIDIA-A100-SXM4-80GB"); of several the one that says most. None:
    nobody's, or two say the same."""
    words = _words(product)
    fitting = [one for one in types if not one.is_cpu and _words(one.name) <= words]
    fitting = [one for one in fitting if one.is_active] or fitting
    most = max((len(_words(one.name)) for one in fitting), default=0)
    best = [one for one in fitting if len(_words(one.name)) == most]
    return best[0] if len(best) == 1 else None


def _describe_sharing(product: str) -> str | None:
    words = _words(product)
    if "mig" in words:
        return "cut into slices"
    return "handed out several times" if "shared" in words else None


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))
