"""GPU type of a node. Pure.

Our own label decides. Without it, the node's instance type decides through the catalogue. Without that, the name of its
GPUs in labels of NVIDIA's feature discovery, Google's node pools or Karpenter decides.

MIG slices and time-shared GPUs have no GPU type, whatever the machine is. Only our own label, which an operator sets on
purpose, gives them one.
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
    """Its GPU type, or the reason why it has none. An invalid label is not overruled: an operator set it on purpose."""
    if record.type_label is not None:
        known = catalogue.get(record.type_label) or catalogue.get(record.type_label.lower())
        return known or f"no GPU type named {record.type_label!r} (its label {label})"
    product = record.product
    if product is not None and (sharing := _describe_sharing(product)) is not None:
        return f"its GPUs are {sharing} ({product}); set the label {label} to offer them anyway"
    if record.instance_type is not None and record.instance_type in by_instance:
        return by_instance[record.instance_type]
    if product is not None:
        known = find_gpu_type_by_product(product, catalogue.values())
        return known or f"no GPU type matches its GPU {product}, and it has no label {label}"
    if record.instance_type is None:
        return f"it has neither a label {label} nor an instance type"
    return f"no GPU type has its instance type {record.instance_type}"


def gpu_types_by_instance(catalogue: Catalogue) -> dict[str, GpuType]:
    """Omits an instance type that several GPU types share, unless exactly one of them is active. Also omits CPU types:
    the control plane's nodes have such instance types too, and only a label marks a node as one for users."""
    sharing: defaultdict[str, list[GpuType]] = defaultdict(list)
    for gpu_type in catalogue.values():
        sharing[gpu_type.instance_type].append(gpu_type)
    chosen = ([one for one in types if one.is_active] or types for types in sharing.values())
    return {types[0].instance_type: types[0] for types in chosen if len(types) == 1 and not types[0].is_cpu}


def find_gpu_type_by_product(product: str, types: Iterable[GpuType]) -> GpuType | None:
    """The type whose name's words are all in the product's name ("NVIDIA-A100-SXM4-80GB"); of several, the one with the
    most words. None: no type matches, or two match equally well."""
    words = _words(product)
    matching = [one for one in types if not one.is_cpu and _words(one.name) <= words]
    matching = [one for one in matching if one.is_active] or matching
    most = max((len(_words(one.name)) for one in matching), default=0)
    best = [one for one in matching if len(_words(one.name)) == most]
    return best[0] if len(best) == 1 else None


def _describe_sharing(product: str) -> str | None:
    words = _words(product)
    if "mig" in words:
        return "MIG slices"
    return "time-shared" if "shared" in words else None


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))
